"""The messages of forecasts."""

from __future__ import annotations

from client_plugin.messages.form import NODE, ORDER, Message, Part

MUST_BE_MODELS = Part(ORDER, "must be a list of 1 to {limit} GPU models")
MUST_BE_TOKEN = Part(ORDER, "must be the token of a task: 1 to 64 hex digits")
MUST_BE_MODEL = Part(ORDER, "must have names of 1 to {limit} printable characters")
WEIGHTS_TOO_LARGE = Part(NODE, "it has more than {limit_bytes} bytes")
WEIGHTS_NOT_USED = Message(
    NODE,
    "{path}, the learned weights of forecasts, is not used: {fault}",
    "delete it; the next training writes it anew, and estimates stand until then",
)
EXIT_CODE = Part(NODE, "it ended with code {code}")
TRAINING_FAILED = Message(
    NODE,
    "the training of forecasts failed: {fault}",
    "forecasts go on with what they have; the next training begins after more samples",
)
