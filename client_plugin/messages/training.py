"""The messages of elastic training (`nodemgr_client.elastic`): what a program meets in it."""

from __future__ import annotations

from .form import Message

# -- the arguments of elastic(...) --

NOT_POSITIVE = Message("elastic: {name} is {value!r}", "it must be a whole number above 0")

# -- a training that is not elastic --


NO_LOSS = Message(
    "elastic: run.backward(loss) with {found}",
    "pass the mean loss of the batch, a tensor of one number",
)
