"""docs/messages.md: every message of the tables, by the limit that it is about.

    python -m nodemgr.cli.presentation.messages_reference > docs/messages.md

With the argument `js` it prints the page's static/messages.js, with `jupyter` the extension's
nodemgr_jupyter/no_client.py. Knows: where the tables are, Markdown. Must not know: when a message
is printed.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from types import ModuleType

import client_plugin.messages
import nodemgr.messages
from client_plugin.messages.form import OWNERS, Check, CheckDetail, Message, Part

PACKAGES: tuple[ModuleType, ...] = (client_plugin.messages, nodemgr.messages)
SINGLE_TABLES = ("nodemgr.core.model.messages",)
FORM = "client_plugin.messages.form"
FIELD = re.compile(r"\{(\w+)[^}]*\}")
FOUND_NAMES = {"meant": ""}
"""Fields that are empty unless there is a guess."""
PAGE = """# Messages

Every line that nodemgr prints about a failure or a refusal, in the sections of the limits that they
are about. A line has three parts: what happened, whose limit it is, and what to do next. A word in
capital letters stands for a value. The code is in the field `code` of an answer (`--json`, the web
page, the manager's sockets) and decides the exit code of a verb: see
[users.md](users.md#exit-codes).

Each message has one row in a table of the source: `client_plugin/messages`, `nodemgr/messages`,
`nodemgr/core/model/messages.py`. This page is made from them
(`python -m nodemgr.cli.presentation.messages_reference`).
"""
CHECKS = """
## Checks of `nodemgr doctor`

The title of each check, and the cure that stands behind what it found where it fails.

"""
FINDINGS = """
## What the checks find

"""
PARTS = """
## Parts of messages

These stand inside the lines above, and in the reasons that `nodemgr queue` and `nodemgr history`
print.

"""


def tables() -> dict[str, dict[str, Message]]:
    """Module -> its rows by name, in the order of the source."""
    names = [
        f"{package.__name__}.{module.name}"
        for package in PACKAGES
        for module in pkgutil.iter_modules(package.__path__)
    ]
    found = {}
    for name in sorted({*names, *SINGLE_TABLES} - {FORM}):
        module = importlib.import_module(name)
        found[name] = {key: row for key, row in vars(module).items() if isinstance(row, Message)}
    return found


def page() -> str:
    named = [item for table in tables().values() for item in table.items()]
    rows = sorted(named, key=lambda item: item[0])
    checks = [row for row in rows if isinstance(row[1], Check)]
    findings = [row for row in rows if isinstance(row[1], CheckDetail)]
    lines = [row for row in rows if not isinstance(row[1], (Part, Check))]
    parts = [row for row in rows if isinstance(row[1], Part) and row not in findings]
    text = PAGE
    for owner in OWNERS:
        if owned := [row for row in lines if row[1].owner is owner]:
            text += f"\n## {owner.title}\n\n{owner.text}\n\n"
            text += "".join(_entry(key, row) for key, row in owned)
    text += CHECKS + "".join(_entry(key, row) for key, row in checks)
    text += FINDINGS + "".join(_entry(key, row) for key, row in findings)
    return text + PARTS + "".join(_entry(key, row) for key, row in parts)


def _entry(key: str, row: Message) -> str:
    code = f" · code `{row.code}`" if row.code else ""
    note = f"<br>{row.note}" if row.note else ""
    return f"- `{key.lower()}`{code}<br>{shown(row)}{note}\n"


def shown(row: Message) -> str:
    """The line, with its fields as words in capital letters."""
    text = FIELD.sub(lambda found: FOUND_NAMES.get(found[1], found[1].upper()), row.template)
    return text.replace("{{", "{").replace("}}", "}").replace("<", "&lt;").replace("*", "\\*")


SCRIPT = """// The messages of the page, a function for each row of nodemgr/messages/page.py.
// Made by `python -m nodemgr.cli.presentation.messages_reference js`. Not to be edited.

"""


def script() -> str:
    """The page's module of messages: each row as a sentence."""
    rows = tables()["nodemgr.messages.page"]
    return SCRIPT + "\n".join(_function(key, row) for key, row in rows.items())


def _function(key: str, row: Message) -> str:
    first, *others = key.lower().split("_")
    name = first + "".join(map(str.capitalize, others))
    fields = ", ".join(dict.fromkeys(FIELD.findall(row.template)))
    text = FIELD.sub(r"${\1}", row.template.replace("`", ""))
    text = text if text.startswith("$") else text[0].upper() + text[1:]
    return f"export const {name} = ({f'{{ {fields} }}' if fields else ''}) =>\n  `{text}.`;\n"


NO_CLIENT_PAGE = '''"""The texts of a server without a client, in which no table can be imported.

Made by `python -m nodemgr.cli.presentation.messages_reference jupyter`. Not to be edited.
"""

CELL_WITHOUT_CLIENT = {cell}
NO_CLIENT = (
{text}
)
'''


def no_client() -> str:
    """The module with the texts of the Jupyter extension where no client is found."""
    rows = tables()["client_plugin.messages.jupyter"]
    text = FIELD.sub(r"%(\1)s", rows["NO_CLIENT"].template.replace("%", "%%"))
    pieces = [f"    {json.dumps(piece)}" for piece in re.findall(r".{1,80}", text)]
    return NO_CLIENT_PAGE.format(
        text="\n".join(pieces), cell=json.dumps(rows["CELL_WITHOUT_CLIENT"].template)
    )


OUTPUTS: dict[str, Callable[[], str]] = {"js": script, "jupyter": no_client}


if __name__ == "__main__":
    print(OUTPUTS[sys.argv[1]]() if sys.argv[1:] else page(), end="")
