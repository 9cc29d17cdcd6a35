"""The policy `learned`: scores order the idle GPUs, and `reliable` decides where there are none."""

from __future__ import annotations

from collections.abc import Sequence

from nodemgr.core.manager import Draft, step
from nodemgr.core.model.effects import StartJob
from nodemgr.core.model.entities import Config, Gpu, JobPayload, JobSpec, Quota, RunSpec
from nodemgr.core.model.events import (
    Event,
    GpusChanged,
    LaunchHostChanged,
    SetQuota,
    Submission,
    SubmitJobs,
)
from nodemgr.core.placement.policies import KnownGpu, SizedJob

NOW = WALL = 10**12
GPUS = tuple(Gpu(f"GPU-{index}", index, "model", 80 << 30) for index in range(4))


def node() -> Draft:
    state = Draft(Config(placement="learned"))
    for event in (
        GpusChanged(GPUS, WALL),
        LaunchHostChanged("", True, "", WALL),
        SetQuota("env", Quota(4), "root", WALL),
    ):
        take(state, event)
    return state


def take(state: Draft, event: Event) -> list[StartJob]:
    transition = step(state, event, NOW)
    transition.apply()
    starts = [effect for effect in transition.effects if isinstance(effect, StartJob)]
    return starts + (take(state, transition.then) if transition.then is not None else [])


def submit(gpus: int, hours: float | None = None) -> Event:
    expected_ms = None if hours is None else round(hours * 3_600_000)
    run = RunSpec("train", gpus, None, None, expected_ms=expected_ms)
    payload = JobPayload(("train",), "/", ())
    return SubmitJobs(
        (Submission(1, "ann", "env", JobSpec("", "ann", 1, 1), payload, "", run, None),), WALL
    )


def given(state: Draft, event: Event) -> tuple[str, ...]:
    (start,) = take(state, event)
    return start.gpus


class Scorer:
    """Scores by GPU index; None: it has a fault. It records what it was asked."""

    def __init__(self, scores: dict[int, float] | None) -> None:
        self.fault = "" if scores else "no weights"
        self.asked: list[tuple[list[int], SizedJob]] = []
        self._scores = scores

    def __call__(self, candidates: Sequence[KnownGpu], job: SizedJob, /) -> list[float] | None:
        indexes = [gpu.index for gpu in candidates]
        self.asked.append((indexes, job))
        return None if self._scores is None else [self._scores[index] for index in indexes]


def test_the_highest_scores_are_given_first() -> None:
    state, scorer = node(), Scorer({0: 1.0, 1: 4.0, 2: 2.0, 3: 3.0})
    state.learn(scorer)
    assert set(given(state, submit(2, 5.0))) == {"GPU-1", "GPU-3"}
    assert scorer.asked[0] == ([0, 1, 2, 3], SizedJob(2, 5.0))
    assert given(state, submit(1)) == ("GPU-2",)
    assert ([0, 2], SizedJob(1, None)) in scorer.asked


def test_without_scores_the_policy_is_reliable() -> None:
    state, plain = node(), node()
    state.learn(Scorer(None))
    assert given(state, submit(2)) == given(plain, submit(2)) == ("GPU-0", "GPU-1")
