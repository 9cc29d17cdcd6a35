"""The messages of forecasts."""

from __future__ import annotations

from client_plugin.messages.form import Message, Part

MUST_BE_MODELS = Part("must be a list of 1 to {limit} GPU models")
MUST_BE_TOKEN = Part("must be the token of a task: 1 to 64 hex digits")
MUST_BE_RECOGNISED = Part(
    "must be a program's key (64 hex digits), its numbers, and whether it holds"
)
MUST_BE_MODULES = Part("must be a list of at most {limit} files: path, size, time and digest")
MUST_BE_MODEL = Part("must have names of 1 to {limit} printable characters")
FORECAST_ABOVE_LIMIT = Message(
    "{needed} per GPU are predicted, but {env} may have at most {limit}",
    "make the model or its batch smaller, or name what it really needs with --memory",
    code="quota",
)
WEIGHTS_TOO_LARGE = Part("it has more than {limit_bytes} bytes")
WEIGHTS_NOT_USED = Message(
    "{path}, the learned weights of forecasts, is not used: {fault}",
    "delete it; the next training writes it anew, and estimates stand until then",
)
SAMPLES_NOT_READ = Message(
    "forecasts begin without the samples of earlier tasks: {fault}",
    "check the disk of the state directory; new samples are used as they come",
)
EXIT_CODE = Part("it ended with code {code}")
TRAINING_BY_SIGNAL = Part("it was ended by signal {signal}")
TOO_LONG = Part("it ran for more than {limit_s} s")
WEIGHTS_NOT_WRITTEN = Part("{path} cannot be written ({error})")
TRAINING_FAILED = Message(
    "the training of forecasts failed: {fault}",
    "forecasts go on with what they have; the next training begins after more samples",
)
