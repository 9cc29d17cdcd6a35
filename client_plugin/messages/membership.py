"""The messages of the leader of an elastic task about its lease."""

from __future__ import annotations

from .form import Message, Part

LEASE_GRANTED = Part("{gpus} GPUs granted")
LEASE_WITHOUT_MANAGER = Part("no manager answers on {path} ({why})")
LEADER_OUTSIDE = Message(
    "{directory}/client.conf cannot be read: this process is in no environment",
    "start it by `nodemgr run --elastic`",
)
LEADER_OVER_UDP = Message(
    "an elastic task needs the node's UNIX socket; the manager is at {address}",
    "run it on the node itself",
)
