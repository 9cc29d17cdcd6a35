"""Messages of the web page: its tokens, its verbs, its addresses."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
)

NO_TOKEN = Message(
    "there is no token {token!r}",
    "`nodemgr web tokens` lists them",
    code="not_found",
)
