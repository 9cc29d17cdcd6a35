"""The line of a refused order, in the words of the command line that was typed.

Knows: the option or the word that fills each argument of an order. Must not know: verbs, sockets.
"""

from __future__ import annotations

from client_plugin import fields
from client_plugin.messages.form import relayed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


TYPED = {
    **{row.name: row.option for row in fields.ALL if row.is_ordered},
    "add_groups": "--group", "add_users": "--user", "admin": "--admin", "argv": "COMMAND",
    "attempt": "--attempt", "drain": "--drain", "drop_groups": "--no-group",
    "drop_users": "--no-user", "env": "--env", "first": "--first", "for_ms": "--for",
    "force": "--force", "grace_ms": "--grace", "groups": "--group", "index": "INDEX",
    "job": "JOB", "jobs": "JOB", "mine": "--mine", "no_after": "--no-after", "note": "--note",
    "node": "--name", "queue": "QUEUE", "since_wall_ns": "--since", "state": "--state",
    "take_over": "--take-over", "task": "TASK", "token": "TOKEN", "users": "--user",
    "word": "WORD",
}  # fmt: skip
"""Argument of an order -> the option, or the word of the usage line, that a user types for it."""


def refusal(answer: Mapping[str, Any]) -> str:
    """The line of an answer with `error`. One about an argument begins with what was typed."""
    typed = TYPED.get(str(answer.get("argument")))
    if typed is None or "fault" not in answer:  # or of a manager that has no fields of its line
        return relayed(str(answer["error"]))
    return relayed(f"{typed}: {answer['fault']}")
