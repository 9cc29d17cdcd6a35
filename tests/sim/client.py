"""A client process of a node, step by step: `client.alloc(1 << 30)` runs peer.py's `alloc`.

Knows: how to start and end such a process. Must not know: any function of the driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import WAIT_LIMIT_S

PEER = Path(__file__).resolve().parent / "peer.py"

RESULTS = {
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    46: "DEVICE_UNAVAILABLE",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT",
    208: "ALREADY_MAPPED",
    400: "INVALID_HANDLE",
    304: "OPERATING_SYSTEM",
    401: "ILLEGAL_STATE",
    500: "NOT_FOUND",
    600: "NOT_READY",
    801: "NOT_SUPPORTED",
    900: "STREAM_CAPTURE_UNSUPPORTED",
}


class Refused(Exception):
    """The driver's answer, by name without its prefix."""

    def __init__(self, code: int) -> None:
        self.name = RESULTS.get(code, str(code))
        super().__init__(self.name)


@contextmanager
def refused(name: str) -> Iterator[None]:
    """The call inside is refused with just that result."""
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.name == name


class Client:
    """One peer. A context manager: it is ended, and waited for, at the end."""

    def __init__(self, environment: Mapping[str, str], python: str = sys.executable) -> None:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "NODEMGR_"))
        }
        self._process = subprocess.Popen(
            [python, "-S", str(PEER)],
            env={**clean, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=WAIT_LIMIT_S)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._ask(name, *arguments)

    def _ask(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, "with": arguments}) + "\n")
        self._process.stdin.flush()
        return value_of(json.loads(self._process.stdout.readline()))

    def exit(self) -> None:
        """An end without having freed anything: the orders stop, and the program with them."""
        self._process.communicate(timeout=WAIT_LIMIT_S)

    def kill(self) -> None:
        """kill -9, and the death seen."""
        self._process.kill()
        self._process.wait(timeout=WAIT_LIMIT_S)

    def stop(self) -> None:
        """SIGSTOP, and the stop seen."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def value_of(answer: dict[str, Any]) -> Any:
    """An answer's value; Refused, or a failure of the test, for the others."""
    if "refused" in answer:
        raise Refused(answer["refused"])
    assert "fault" not in answer, answer["fault"]
    return answer["value"]
