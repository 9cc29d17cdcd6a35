"""The messages of the leader of an elastic task about its lease."""

from __future__ import annotations

from .form import COMMAND_LINE, MANAGER, NODE, Message, Part

LEASE_GRANTED = Part(NODE, "{gpus} GPUs granted")
LEASE_WITHOUT_MANAGER = Part(MANAGER, "no manager answers on {path} ({why})")
LEADER_OUTSIDE = Message(
    COMMAND_LINE,
    "{directory}/client.conf cannot be read: this process is in no environment",
    "start it by `nodemgr run --elastic`",
)
LEADER_OVER_UDP = Message(
    NODE,
    "an elastic task needs the node's UNIX socket; the manager is at {address}",
    "run it on the node itself",
)
