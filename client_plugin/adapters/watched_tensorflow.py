"""TensorFlow in a process that `nodemgr predict` watches: its training step is traced.

Knows: the directory for the outcome. Must not know: graphs, leases.
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


def adapt(_tensorflow: ModuleType) -> None:
    from ..prediction.tensorflow import session

    session.start(os.environ[outcome.VARIABLE])
