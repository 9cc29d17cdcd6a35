"""A real ipykernel, driven by jupyter_client as JupyterLab drives it.

Knows: the kernel's messages, the one output of a waiting line. Must not know: any one test. Needs
ipykernel when one is opened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.limits import WAIT_LIMIT_S


@dataclass
class Cell:
    """The output of a cell so far.

    `lines`: the waiting line's states, in the one output that updates itself.
    """

    request: str
    outputs: list[str] = field(default_factory=list)
    stderr: str = ""
    lines: list[str] = field(default_factory=list)
    line_outputs: set[str] = field(default_factory=set)
    error: str | None = None
    done: bool = False

    def take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            if content["name"] == "stderr":
                self.stderr += content["text"]
            else:
                self.outputs.append(content["text"].strip())
        elif kind == "execute_result":
            self.outputs.append(content["data"]["text/plain"])
        elif kind in ("display_data", "update_display_data"):
            self.lines.append(content["data"]["text/plain"])
            self.line_outputs.add(content["transient"]["display_id"])
        elif kind == "error":
            self.error = f"{content['ename']}: {content['evalue']}"
        elif kind == "status" and content["execution_state"] == "idle":
            self.done = True


class Notebook:
    """One kernel and its frontend."""

    def __init__(
        self, environ: dict[str, str], directory: Path, argv: list[str] | None = None
    ) -> None:
        """`directory`: for what IPython and Jupyter write; `argv`: of another kernelspec."""
        from jupyter_client import KernelManager

        private = {
            "IPYTHONDIR": str(directory / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        }
        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        if argv is not None:
            self.manager.kernel_spec.argv = argv
        self.manager.start_kernel(env={**environ, **private}, independent=True)
        self.frontend = self.manager.blocking_client()
        self.frontend.start_channels()
        self.frontend.wait_for_ready(timeout=WAIT_LIMIT_S)

    def start(self, code: str) -> Cell:
        return Cell(self.frontend.execute(code))

    def until(self, cell: Cell, condition: Callable[[Cell], Any]) -> Cell:
        while not condition(cell):
            message = self.frontend.get_iopub_msg(timeout=WAIT_LIMIT_S)
            if message["parent_header"].get("msg_id") == cell.request:
                cell.take(message)
        return cell

    def run(self, code: str) -> Cell:
        return self.until(self.start(code), lambda cell: cell.done)

    def close(self) -> None:
        self.frontend.stop_channels()
        self.manager.shutdown_kernel(now=True)
