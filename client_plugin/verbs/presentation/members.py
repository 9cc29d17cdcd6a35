"""Users and groups of a quota or a queue on a command line, and the changes of their access.

Knows: the arguments of the manager's orders. Must not know: the options' texts.
"""

from __future__ import annotations

from client_plugin.messages.form import notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping


def membership(values: Mapping[str, Any], is_whole: bool) -> Dict[str, Any]:
    """The arguments, by the values of the options (fields.members).

    `is_whole`: they are the whole lists, else they join those named before.
    """
    joins = "" if is_whole else "add_"
    said = {
        f"{joins}users": list(values["users"]), f"{joins}groups": list(values["groups"]),
        "drop_users": list(values["no_users"]), "drop_groups": list(values["no_groups"]),
    }  # fmt: skip
    return {name: names for name, names in said.items() if names or name in ("users", "groups")}


def access_lines(answer: Mapping[str, Any], whose: str) -> List[str]:
    return [
        notice(f"{', '.join(answer[change])} {change} access to {whose}")
        for change in ("gained", "lost")
        if answer.get(change)
    ]
