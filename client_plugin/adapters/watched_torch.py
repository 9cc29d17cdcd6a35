"""PyTorch in a process that `nodemgr predict` watches: fake tensors stand in for those on a GPU.

Knows: the directory for the outcome. Must not know: how tensors are faked, leases.
"""

from __future__ import annotations

import os
from types import ModuleType

from ..prediction import outcome

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False
USES_CUDA = False


def prepare() -> None:
    """The time limit of the watch may pass within the import."""
    outcome.import_begins(os.environ[outcome.VARIABLE])


def adapt(torch: ModuleType) -> None:
    """The import is complete: threads of the backward pass need not wait for its end."""
    from ..prediction.pytorch import session

    if torch.__spec__ is not None:
        torch.__spec__._initializing = False  # type: ignore[attr-defined]
    session.start(os.environ[outcome.VARIABLE])
