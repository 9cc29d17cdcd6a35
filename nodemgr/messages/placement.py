"""The messages of learned placement: files of weights, traces, training."""

from __future__ import annotations

from client_plugin.messages.form import Message, Part

WEIGHTS_SHAPE = Part("its shapes fit no network")
WEIGHTS_NUMBER = Part("one of its weights is no finite number")
FORWARD_PASS_FAILED = Message(
    "the forward pass of learned placement gave no finite scores",
    "train again; the policy reliable chooses instead",
)
CHECKPOINT_DAMAGED = Message(
    "{path} is no checkpoint of a training",
    "name that of a stopped training; `train --restart` begins anew",
)
