"""Audits launch gates: applies the policy to processes that take more compute than their share.

Knows: the rules for findings, and the policy (lifecycle/audit.py). Must not know: the gates, how a
finding is measured.

The rules:
- Over its share: the process's work went on while its gate was closed. The manager closes the gate
  of a task for two seconds when the task has used more than its share while another one waits.
- Garbled gate: the process's env alone has a page, and a word there cannot be right. This is
  proven by one reading.
A finding about memory comes first: a process has one violation on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.lifecycle import audit
from nodemgr.core.model.entities import OF_COMPUTE, ProcessKey, Uuid, Violation
from nodemgr.core.model.events import ComputeAudited, ComputeFinding
from nodemgr.core.model.values import replace
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


def audited(draft: Draft, event: ComputeAudited) -> None:
    """Handles one reading of all gates."""
    found = {key for finding in event.findings if (key := _note(draft, finding))}
    for key, violation in [(key, draft.violations[key]) for key in draft.violations]:
        if key in found:
            audit.act(draft, violation)
        elif violation.offence in OF_COMPUTE:
            audit.fade(draft, violation)


def is_news(book: State, findings: Iterable[ComputeFinding]) -> bool:
    """Is there an offence, in this reading or until now?"""
    return any(True for _ in findings) or any(
        violation.offence in OF_COMPUTE for violation in book.violations.values()
    )


def _note(draft: Draft, finding: ComputeFinding) -> tuple[ProcessKey, Uuid] | None:
    """The key of the violation; None: there is no such process, or a finding about memory."""
    key = finding.process, finding.uuid
    process, before = draft.processes.get(finding.process), draft.violations.get(key)
    if process is None or process.pid is None or process.fenced or finding.uuid not in draft.gpus:
        return None
    if before is not None and before.offence not in OF_COMPUTE:
        return None
    task = draft.tasks.get(process.task_id)
    if before is None or before.offence is not finding.offence:
        command = "" if task is None else task.run.command
        before = Violation(
            finding.offence, finding.uuid, process.key, process.pid, command, draft.now_ns
        )
    noted = replace(
        before,
        env=process.env,
        task_id=None if task is None else task.task_id,
        used_percent=finding.used_percent,
        allowed_percent=finding.allowed_percent,
        last_ns=draft.now_ns,
    )
    draft.violations.put(key, noted)
    return key
