"""The order `forecast`: memory, utilisation and time of a training on each GPU model.

Knows: the arguments of the order, the GPU models of the node. Must not know: how features were
found, how a figure is predicted (core/forecast).
"""

from __future__ import annotations

from typing import Any, Protocol

from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import gpu_models, prediction
from nodemgr.core.forecast.features import Features, FeaturesError
from nodemgr.core.forecast.prediction import NOTHING_KNOWN
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import Argument, OperationError
from nodemgr.messages import forecast as messages

MAX_MODELS = 16
MAX_MODEL_CHARACTERS = 96


def features(given: object) -> Features:
    try:
        return feature_form.parse(given)
    except FeaturesError as error:
        raise OperationError(error.line) from None


def models(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not 0 < len(given) <= MAX_MODELS:
        raise OperationError(messages.MUST_BE_MODELS(limit=MAX_MODELS))
    for name in given:
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= MAX_MODEL_CHARACTERS
            or not name.isprintable()
        ):
            raise OperationError(messages.MUST_BE_MODEL(limit=MAX_MODEL_CHARACTERS))
    return tuple(dict.fromkeys(given))


ARGUMENTS = {"features": Argument(features, required=True), "models": Argument(models)}


class ForecastCaller(Protocol):
    """A user of one environment."""

    @property
    def user(self) -> str: ...


class ForecastOperations:
    """The verb, on a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def forecast(self, who: ForecastCaller, given: dict[str, Any]) -> dict[str, Any]:
        """The forecast for each named model, else for each of the node's."""
        found: Features = given["features"]
        names = given.get("models") or self._models_of_node()
        rates = {name: gpu_models.find(name) for name in names}
        known = tuple({model.name: model for model in rates.values() if model}.values())
        forecasts = prediction.predict(found, known, who.user, NOTHING_KNOWN) + tuple(
            prediction.predict_memory(found, name, who.user, NOTHING_KNOWN)
            for name, model in rates.items()
            if model is None
        )
        return prediction.answer(found, forecasts)

    def _models_of_node(self) -> tuple[str, ...]:
        gpus = sorted(self._daemon.state.gpus.values(), key=lambda gpu: gpu.index)
        return tuple(dict.fromkeys(gpu.name for gpu in gpus))
