"""The state of a training as bytes: numbers in JSON, arrays as numpy has them on disk, no pickles.

Must not know: TensorFlow, what the arrays are.
"""

from __future__ import annotations

import io
import json
from typing import Any, Dict, List

import numpy as np

_LINKS = "nodemgr array"


def write(value: Any, file: Any) -> None:
    arrays: List[Any] = []
    text = json.dumps(_without(value, arrays))
    named: Dict[str, Any] = {str(number): each for number, each in enumerate(arrays)}
    np.savez(file, meta=np.frombuffer(text.encode(), np.uint8), **named)


def read(file: Any) -> Any:
    """Raises ValueError, OSError or KeyError: it is no such file."""
    with np.load(file, allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].tobytes())
        return _with(meta, archive)


def packed(value: Any) -> Any:
    file = io.BytesIO()
    write(value, file)
    return file.getbuffer()


def unpacked(data: Any) -> Any:
    return read(io.BytesIO(data))


def _without(value: Any, arrays: List[Any]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {_LINKS: len(arrays) - 1}
    if isinstance(value, dict):
        return {key: _without(each, arrays) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each, arrays) for each in value]
    return value


def _with(value: Any, archive: Any) -> Any:
    if isinstance(value, dict) and _LINKS in value:
        return archive[str(value[_LINKS])]
    if isinstance(value, dict):
        return {key: _with(each, archive) for key, each in value.items()}
    if isinstance(value, list):
        return [_with(each, archive) for each in value]
    return value
