"""The messages of forecasts."""

from __future__ import annotations

from client_plugin.messages.form import ORDER, Part

MUST_BE_MODELS = Part(ORDER, "must be a list of 1 to {limit} GPU models")
MUST_BE_MODEL = Part(ORDER, "must have names of 1 to {limit} printable characters")
