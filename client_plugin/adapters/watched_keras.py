"""Keras in a process that `nodemgr predict` watches: the step of `fit` is traced.

With another framework than TensorFlow, that one's adapter watches. Must not know: graphs, leases.
"""

from __future__ import annotations

import sys
from types import ModuleType

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False
USES_CUDA = False


def adapt(keras: ModuleType) -> None:
    if "tensorflow" in sys.modules:
        from ..prediction.tensorflow import session

        session.follow_keras(keras)
