"""Messages of a cluster's head: its store, its nodes, its verbs."""

from __future__ import annotations

from client_plugin.messages.form import Message

STORE_FAILS = Message(
    "the head's store cannot be written ({fault})",
    "free the disk of its directory; until then it takes no order and nodes say all again",
)
NODE_SILENT = Message(
    "{node} does not answer", "try again when nodemgr node list shows it up", code="busy"
)
