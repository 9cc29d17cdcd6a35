"""The file that is made from the tables of messages.

    python -m nodemgr.cli.presentation.generated_messages

prints the extension's nodemgr_jupyter/no_client.py. Knows: where the tables are. Must not know:
when a message is printed.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from types import ModuleType

import client_plugin.messages
import nodemgr.messages
from client_plugin.messages.form import Message

PACKAGES: tuple[ModuleType, ...] = (client_plugin.messages, nodemgr.messages)
FORM = "client_plugin.messages.form"
FIELD = re.compile(r"\{(\w+)[^}]*\}")


def tables() -> dict[str, dict[str, Message]]:
    """Module -> its rows by name, in the order of the source."""
    names = {
        f"{package.__name__}.{module.name}"
        for package in PACKAGES
        for module in pkgutil.iter_modules(package.__path__)
    }
    found = {}
    for name in sorted(names - {FORM}):
        module = importlib.import_module(name)
        found[name] = {key: row for key, row in vars(module).items() if isinstance(row, Message)}
    return found


NO_CLIENT_PAGE = '''"""The texts of a server without a client, in which no table can be imported.

Made by `python -m nodemgr.cli.presentation.generated_messages`. Not to be edited.
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


if __name__ == "__main__":
    print(no_client(), end="")
