"""`%gpu`, a line magic of IPython: the GPUs of this kernel, their return, a request for others.

Knows: the lease, the questions to the manager, IPython's UsageError. Must not know: notebooks. A
mistake or refusal is one line, and the cell fails with it; COMMANDS is the list of commands.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from typing import Any, Callable, NoReturn

from . import lease, stderr, summary
from .messages.form import as_line, notice, relayed

ANSWER_TIMEOUT_MS = 5_000
ANSWER_BYTES = 1 << 22
LEFT_S = 5.0
MAX_GPUS = 1_024
MAX_ROWS = 20

_released: list[str] = []  # UUIDs of the GPUs that %gpu release gave back last


def gpu(line: str) -> None:
    """`%gpu [status|release|acquire [N]|keep TIME]`."""
    words = line.split() or ["status"]
    command = COMMANDS.get(words[0])
    if command is None:
        _fail(f"no such command {words[0][:40]!r}", f"%gpu has {', '.join(COMMANDS)}")
    if not lease.start():
        _fail(
            "this kernel is in no environment of nodemgr",
            "start it with `nodemgr run`, or choose a kernel of `nodemgr kernel install`",
        )
    command(words[1:])


def _status(words: list[str]) -> None:
    """Print the kernel's GPUs, the tasks of its environment and its queue."""
    if words:
        _fail("status takes no argument", "write %gpu status")
    status = _ask("status", None)
    own = lease.task()
    task = next((row for row in status["tasks"] if row["id"] == own), None)
    lines = [
        summary.held(task, status)
        if task is not None
        else notice(f"{summary.NONE}: this kernel holds none; the first use of CUDA asks for them")
    ]
    for env in status["envs"]:
        lines.append(
            f"environment {env['name']}: {len(env['gpus'])} of {env['quota']['gpus']} GPUs in use"
        )
    for row in status["tasks"][:MAX_ROWS]:
        mark = " (this kernel)" if row["id"] == own else ""
        lines.append(f"  {row['id']}  {summary.held(row, status)}  {row['command']}{mark}")
    for row in status["queue"][:MAX_ROWS]:
        lines.append(f"  {row['id']}  {summary.waiting(row)}  {summary.reason(row)}")
    for text in lines:
        print(stderr.printable(text))


def _release(words: list[str]) -> None:
    """Give the GPUs of this kernel's task back."""
    if words:
        _fail(
            "release takes no argument: it gives all GPUs of this kernel back", "write %gpu release"
        )
    own = lease.task()
    if own is None:
        print(notice(f"{summary.NONE}: this kernel holds none"))
        return
    _released[:] = lease.gpus()
    _empty_caches()
    _ask("release", own)
    if not lease.left(LEFT_S):
        _fail(
            f"{own} is released, and this process has not heard so within {LEFT_S:.0f} s",
            "restart the kernel to be sure",
        )
    print(
        f"{own} is released. Memory that this kernel still uses stays in use until it restarts; "
        "%gpu acquire asks for GPUs again."
    )


def _acquire(words: list[str]) -> None:
    """Ask for GPUs now, and wait for them."""
    wished = _number(words) if words else None
    held = len(lease.gpus())
    if held and wished not in (None, held):
        _fail(
            f"this kernel holds {held} GPU{'s' * (held != 1)}",
            "%gpu release gives them back before it asks for another number",
        )
    refusal = lease.acquire(wished)
    if refusal:
        _fail(relayed(refusal))
    now = lease.gpus()
    if not now:
        print(notice(f"{summary.NONE}: this kernel goes on without a GPU"))
        return
    status = _ask("status", None)
    task = next((row for row in status["tasks"] if row["id"] == lease.task()), None)
    print(summary.held(task, status) if task is not None else notice(f"{len(now)} GPUs are held"))
    if _released and _released != now:
        print(
            "These are other GPUs than before: CUDA, once used, sees them after a restart of the "
            "kernel."
        )


def _keep(words: list[str]) -> None:
    """No idle policy acts on this kernel's task for a time."""
    from . import units

    try:
        (text,) = words
        for_ms = units.parse_duration_ms(text)
    except ValueError:
        for_ms = 0
    if for_ms < 1:
        _fail(f"{' '.join(words)[:40]!r} is no time to keep", "write %gpu keep 2h")
    own = lease.task()
    if own is None:
        _fail("this kernel holds no GPU", "keep it after its first use, or write %gpu acquire")
    _ask("keep", f"{own} {for_ms}")
    print(
        notice(
            f"{own} keeps its GPU memory for {units.format_duration(for_ms)}, also while it is idle"
        )
    )


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "status": _status,
    "release": _release,
    "acquire": _acquire,
    "keep": _keep,
}


def _number(words: list[str]) -> int:
    text = words[0]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if len(words) > 1 or not 1 <= number <= MAX_GPUS:
        _fail(f"{' '.join(words)[:40]!r} is no number of GPUs", "write %gpu acquire 2")
    return number


def _ask(what: str, argument: str | None) -> Any:
    """The manager's answer; a refusal fails the cell."""
    out = ctypes.create_string_buffer(ANSWER_BYTES)
    if lease.ask(what, argument, out, ANSWER_TIMEOUT_MS) < 0:
        _fail(relayed(out.value.decode("utf-8", "replace")))
    try:
        answer = json.loads(out.value.decode("utf-8", "replace"))
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        _fail(
            "the manager's answer is no object",
            "use a client of the manager's version (restart the container or the server)",
        )
    if "error" in answer:
        _fail(relayed(str(answer["error"])))
    return answer


def _empty_caches() -> None:
    """PyTorch gives the blocks back that it keeps for reuse."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    except Exception as error:
        stderr.report("torch.cuda.empty_cache()", error)


def _fail(what: str, next: str = "") -> NoReturn:
    kind: type[Exception] = importlib.import_module("IPython.core.error").UsageError
    raise kind(f"nodemgr: {as_line(what, next)}")
