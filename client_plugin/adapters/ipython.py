"""IPython: each shell gets the line magic %gpu (magic) when it is made.

Knows: InteractiveShell's way to make its magics. Must not know: the work of %gpu. IPython itself
uses no CUDA: its load gives no task token and loads no library.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from .. import hook, stderr

USES_CUDA = False
NAME = "gpu"


def adapt(module: ModuleType) -> None:
    shell: Any = hook.member(module, "InteractiveShell")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_magics(self: Any) -> None:
            original(self)
            _register(self)

        return init_magics

    hook.replace(shell, "init_magics", make)
    if shell is not None and shell.initialized():
        _register(shell.instance())


def _register(shell: Any) -> None:
    try:
        shell.register_magic_function(_gpu, magic_kind="line", magic_name=NAME)
    except Exception as error:
        stderr.report("the magic %gpu", error)


def _gpu(line: str) -> None:
    """%gpu status | release | acquire [N]: the GPUs of this kernel."""
    from .. import magic

    magic.gpu(line)
