"""The order `forecast`: memory, utilisation and time of a training on each GPU model.

Knows: the arguments of the order, the GPU models of the node. Must not know: how features were
found, how a figure is predicted (core/forecast).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from client_plugin.fields import MAX_MODEL_CHARACTERS, MAX_MODELS
from client_plugin.messages.form import stated
from nodemgr.core.forecast import earlier_runs, gpu_models, prediction, quality, samples
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast.earlier_runs import Closure, Expected, GoodRun, Numbers, Recognised
from nodemgr.core.forecast.features import Features, FeaturesError
from nodemgr.core.forecast.prediction import Known, ModelForecast
from nodemgr.core.forecast.samples import Announced, SampleOwner
from nodemgr.core.model.entities import Quota, RunSpec
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import admission, reasons
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.api.verb_table import ADMIN, ENV, Speaker, verb
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.cost import Units
from nodemgr.edge.rpc.operation import Argument, OperationError, integer
from nodemgr.messages import forecast as messages

NS = 1_000_000_000
MAX_KEYS = 32
"""In one order."""
MAX_GPUS = 1_024
MAX_CLOSURES = 16
"""In one answer; most commands of a file are one program."""
PROGRAM_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
TOKEN = re.compile(r"[0-9a-f]{1,64}", re.ASCII)
"""Of a task, as NODEMGR_TASK has it."""


def features(given: object) -> Features:
    try:
        return feature_form.parse(given)
    except FeaturesError as error:
        raise OperationError(error.line) from None


def models(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not 0 < len(given) <= MAX_MODELS:
        raise OperationError(f"must be a list of 1 to {MAX_MODELS} GPU models")
    for name in given:
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= MAX_MODEL_CHARACTERS
            or not name.isprintable()
        ):
            raise OperationError(
                f"must have names of 1 to {MAX_MODEL_CHARACTERS} printable characters"
            )
    return tuple(dict.fromkeys(given))


def token(given: object) -> str:
    if not isinstance(given, str) or TOKEN.fullmatch(given) is None:
        raise OperationError("must be the token of a task: 1 to 64 hex digits")
    return given


def recognised(given: object) -> Recognised:
    """A program that its user's client knows again."""
    if not isinstance(given, dict) or given.keys() != {"key", "numbers", "holds"}:
        raise OperationError(messages.MUST_BE_RECOGNISED())
    numbers = given["numbers"]
    if not isinstance(numbers, list) or len(numbers) > earlier_runs.MAX_NUMBERS:
        raise OperationError(messages.MUST_BE_RECOGNISED())
    if not all(isinstance(one, (int, float)) and abs(one) < math.inf for one in numbers):
        raise OperationError(messages.MUST_BE_RECOGNISED())
    return Recognised(program_key(given["key"]), tuple(map(float, numbers)), given["holds"] is True)


def program_key(given: object) -> str:
    if not isinstance(given, str) or PROGRAM_KEY.fullmatch(given) is None:
        raise OperationError(messages.MUST_BE_RECOGNISED())
    return given


def program_keys(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or len(given) > MAX_KEYS:
        raise OperationError(messages.MUST_BE_RECOGNISED())
    return tuple(dict.fromkeys(map(program_key, given)))


def modules(given: object) -> Closure | None:
    try:
        return earlier_runs.closure_of(given)
    except ValueError:
        raise OperationError(
            f"must be a list of at most {earlier_runs.MAX_FILES} files: path, size, time and digest"
        ) from None


def uuids(given: object) -> tuple[str, ...]:
    """Of the GPUs that a task had."""
    if not isinstance(given, list) or not 0 < len(given) <= MAX_GPUS:
        raise OperationError(f"must be a list of 1 to {MAX_GPUS} GPUs")
    if not all(isinstance(one, str) and len(one) <= MAX_MODEL_CHARACTERS for one in given):
        raise OperationError("must have the UUIDs of GPUs")
    return tuple(dict.fromkeys(given))


FEATURES = Argument(features)
RECOGNISED = Argument(recognised)
KEYS = {"keys": Argument(program_keys, required=True)}
REPORTED = {"job": Argument(kinds.job, required=True), "files": Argument(modules)}
BEGUN = {
    "recognised": Argument(recognised, required=True),
    "token": Argument(token, required=True),
}
RAN = {
    "recognised": Argument(recognised, required=True),
    "gpus": Argument(uuids, required=True),
    "run_ms": Argument(integer(1, prediction.MAX_RUN_MS), required=True),
    "files": Argument(modules),
}
SINCE = {"since_wall_ns": Argument(integer(0, 2**63 - 1))}
ARGUMENTS = {
    "features": Argument(features, required=True),
    "models": Argument(models),
    "token": Argument(token),
}


class EarlierRuns(Protocol):
    """The runs of programs that were submitted before (edge/forecast/run_keeper.py)."""

    def closures(self, env: str, keys: Iterable[str]) -> dict[str, Closure]: ...

    def expected(self, env: str, key: str, numbers: Numbers, gpus: int) -> Expected | None: ...

    def reported(self, env: str, user: str, job_id: str, closure: Closure | None) -> None: ...

    def begun(self, env: str, token: str, found: Recognised) -> None: ...

    def times(self, env: str, token: str) -> dict[int, int]: ...

    def ran(self, env: str, found: Recognised, ran: GoodRun) -> None: ...


class Filled(NamedTuple):
    """A submission with the figures that its user has left out."""

    run: RunSpec
    compute_percent: int | None
    answer: dict[str, Any]
    """The forecast, for the user."""


def _above_limit(needed_bytes: int, env: str, most_bytes: int) -> str:
    needed, limit = reasons.gib(needed_bytes), reasons.gib(most_bytes)
    return stated(
        f"{needed} per GPU are predicted, but {env} may have at most {limit}",
        "make the model or its batch smaller, or name what it really needs with --memory",
        "quota",
    )


class ForecastOperations:
    """The verb, and the forecast of a submission, on a daemon."""

    def __init__(
        self,
        daemon: Daemon,
        known: Callable[[], Known],
        announce: Callable[[Announced], None],
        runs: EarlierRuns,
    ) -> None:
        """`known`: the samples and networks at this moment.

        `announce`: takes the features of a task that names its token.
        """
        self._daemon, self._learned, self._announce = daemon, known, announce
        self._runs = runs

    def _known(self) -> Known:
        return replace(self._learned(), driver=self._daemon.gpus.last.driver_version)

    def fill(
        self, owner: SampleOwner, found: Features, run: RunSpec, quota: Quota, percent: int | None
    ) -> Filled:
        """`percent`: the share that the user has named. Each figure of the user's stands.

        Raises OperationError where no GPU of the quota has the memory that is predicted.
        """
        known = self._known()
        forecasts = self._forecasts(found, self._models_of_node(), owner, known)
        answer = prediction.answer(found, forecasts)
        rows = prediction.runs(forecasts, known, owner.env, quota if percent is None else None)
        times_ms = [row.expected_ms for row in rows if row.expected_ms is not None]
        most_bytes = admission.most_memory(self._daemon.state, quota)
        needed_bytes = prediction.needed_bytes(found, forecasts, most_bytes)
        if run.memory_bytes is None and 0 < most_bytes < (needed_bytes or 0):
            raise OperationError(_above_limit(needed_bytes or 0, owner.env, most_bytes))
        if run.memory_bytes is None and needed_bytes is not None:
            # a forecast too low ends no task that could have had more
            ends_bytes = most_bytes if needed_bytes < most_bytes else None
            run = replace(run, memory_bytes=needed_bytes, memory_most_bytes=ends_bytes)
        return Filled(
            replace(
                run,
                expected_ms=max(times_ms) if len(times_ms) == len(rows) > 0 else None,
                predicted=rows,
            ),
            max([row.share_percent or 0 for row in rows], default=0) or percent,
            answer,
        )

    def fill_again(
        self, env: str, found: Recognised, run: RunSpec, quota: Quota, *, is_default: bool
    ) -> tuple[RunSpec, dict[str, Any]]:
        """With the time and the memory of earlier runs, and what the user is told of them.

        Each figure of the user's stands.
        """
        gpus = admission.default_gpus(self._daemon.state, quota) if is_default else run.gpus
        if quota.forecast == "off" or not found.holds:
            return run, {}
        expected = self._runs.expected(env, found.key, found.numbers, gpus)
        if expected is None:
            return run, {}
        earlier: dict[str, Any] = {"runs": expected.runs, "learned": expected.is_learned}
        if run.time_limit_ms is None and expected.run_ms:
            earlier["run_seconds"] = expected.run_ms / 1_000
            run = replace(run, expected_ms=expected.run_ms)
        most_bytes = admission.most_memory(self._daemon.state, quota)
        if run.memory_bytes is None and 0 < (expected.memory_bytes or 0) < most_bytes:
            earlier["memory_bytes"] = expected.memory_bytes
            run = replace(
                run,
                memory_bytes=expected.memory_bytes,
                memory_most_bytes=most_bytes,
                is_memory_filled=True,
            )
        has_figure = earlier.keys() & {"run_seconds", "memory_bytes"}
        return run, {"earlier": earlier} if has_figure else {}

    def expected_ms(self, env: str, token: str, gpus: int | None) -> int | None:
        """Of a task that is no job, at its request; `gpus`: None: it names no number."""
        times, state = self._runs.times(env, token), self._daemon.state
        if gpus is None and times and env in state.envs:
            gpus = admission.default_gpus(state, state.envs[env].quota)
        return times.get(gpus or 0)

    @verb("programs", ENV, KEYS, steps=((Units.FIND, MAX_KEYS),))
    def programs(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """The modules of programs that ran before: the client looks whether they changed."""
        found = self._runs.closures(who.env or "", given["keys"])
        each = list(dict.fromkeys(found.values()))[:MAX_CLOSURES]
        numbers = {closure: number for number, closure in enumerate(each)}
        return {
            "closures": each,
            "of": {key: numbers.get(closure) for key, closure in found.items()},
        }

    @verb("job_modules", ENV, REPORTED, changes=True, steps=((Units.READ, 1), (Units.STORY, 1)))
    def reported(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """The modules that a process of a job had loaded at its good end."""
        self._runs.reported(who.env or "", who.user, given["job"], given.get("files"))
        return {}

    @verb("program_begun", ENV, BEGUN, steps=((Units.FIND, 1),))
    def begun(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """A task that is no job runs a program: its request will have the expected time."""
        self._runs.begun(who.env or "", given["token"], given["recognised"])
        return {}

    @verb("program_ran", ENV, RAN, changes=True, steps=((Units.READ, 1), (Units.STORY, 1)))
    def ran(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """A task that is no job has ended well."""
        ran = GoodRun(given["gpus"], given["run_ms"], given.get("files"))
        self._runs.ran(who.env or "", given["recognised"], ran)
        return {}

    @verb("forecast", ENV, ARGUMENTS, steps=((Units.READ, 1), (Units.FEATURES, 1)))
    def forecast(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """The forecast for each named model, else for each of the node's."""
        found: Features = given["features"]
        names = given.get("models") or self._models_of_node()
        known, owner = self._known(), SampleOwner(who.env or "", who.user)
        if "token" in given:
            rows = self._forecasts(found, self._models_of_node(), owner, known)
            predicted = tuple((row.name, row.predicted) for row in rows)
            self._announce(Announced(owner, given["token"], found, predicted))
        return prediction.answer(found, self._forecasts(found, names, owner, known))

    def _forecasts(
        self, found: Features, names: Iterable[str], owner: SampleOwner, learned: Known
    ) -> tuple[ModelForecast, ...]:
        rates = {name: gpu_models.find(name) for name in names}
        known = tuple({model.name: model for model in rates.values() if model}.values())
        return prediction.predict(found, known, owner, learned) + tuple(
            prediction.predict_memory(found, name, owner, learned)
            for name, model in rates.items()
            if model is None
        )

    @verb("report_samples", ADMIN)
    def samples(self, _who: Speaker, _given: dict[str, Any]) -> dict[str, Any]:
        """All samples, without the user of each."""
        rows = [samples.csv_row(sample) for sample in self._known().samples]
        return {"schema_version": 1, "columns": samples.COLUMNS, "rows": rows}

    @verb("report_forecast", ADMIN, SINCE)
    def quality(self, _who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        since_wall_ns = given.get("since_wall_ns", 0)
        return {
            "schema_version": 1,
            "since": since_wall_ns // NS,
            "figures": quality.rows(self._known().samples, since_wall_ns),
        }

    def _models_of_node(self) -> tuple[str, ...]:
        gpus = sorted(self._daemon.state.gpus.values(), key=lambda gpu: gpu.index)
        return tuple(dict.fromkeys(gpu.name for gpu in gpus))
