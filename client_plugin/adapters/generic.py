"""mxnet, caffe, paddle: nothing of theirs is wrapped.

The shim's cuInit sees their first use and waits through Python; without the shim, their import is
it.

Knows: that there is nothing to know. Must not know: one of them.
"""

from __future__ import annotations

from types import ModuleType

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = True


def adapt(module: ModuleType) -> None:
    pass
