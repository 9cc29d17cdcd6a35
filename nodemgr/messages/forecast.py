"""The messages of forecasts."""

from __future__ import annotations

from client_plugin.messages.form import Message, Part

MUST_BE_RECOGNISED = Part(
    "must be a program's key (64 hex digits), its numbers, and whether it holds"
)
TRAINING_FAILED = Message(
    "the training of forecasts failed: {fault}",
    "forecasts go on with what they have; the next training begins after more samples",
)
