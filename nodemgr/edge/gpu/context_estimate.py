"""The bytes that a CUDA context takes by itself, learned per env and GPU model.

The figures come from processes that hold hardly anything else.

Knows: the auditor's figures, how an estimate follows from them. Must not know: where it is written
(containers/env_directories.py, the store).

The shim charges the estimate before it makes a context. A process shows its context's true size if
its figures did not move between two readings and it was charged little beside the context: the size
is the driver's figure less the other charges. One such process may be odd (a process that did not
run for seconds, with an allocation charged and not yet made, seems to have a smaller context). So
the estimate is the median of the last few. It is never below the initial one, by which no process
gets more than its grant. On a node of several models the smallest is reported, so that no grant is
smaller than necessary.

An env's estimate rests on its own processes alone: a process can allocate past the shim, and the
driver's figure does not distinguish such memory from a context. An estimate that envs shared would
let one tenant shut out the others. An env beyond its limit teaches nothing, so an estimate never
exceeds the limit under which it was learned, and a context can be made and measured again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import median_low

from nodemgr.core.model.entities import Gpu, Process, ProcessKey, Uuid
from nodemgr.edge.gpu.usage import Figure

INITIAL_BYTES = 64 << 20
"""Less than any context takes on a GPU of today."""
MOST_BYTES = 1 << 30
"""A process that shows more holds something else."""
MOST_BESIDE_BYTES = 64 << 20
STEP_BYTES = 8 << 20
"""Smaller differences are not worth telling every client."""
RETAINED_SAMPLES = 9
META = "context_bytes:"
"""Key of an estimate in the store, before env and model."""


class ContextSizes:
    """The estimates, and what they rest on."""

    def __init__(
        self, remember: Callable[[str, str | None], None], remembered: Mapping[str, str]
    ) -> None:
        """`remembered`: the store's facts by key."""
        self._remember = remember
        self._estimates: dict[tuple[str, str], int] = {}
        """The estimates in bytes, by env and model."""
        for key, text in remembered.items():
            if key.startswith(META) and text.isdecimal():
                env, _, model = key.removeprefix(META).partition(":")
                self._estimates[env, model] = int(text)
        self._samples: dict[tuple[str, str], deque[int]] = {}
        self._sampled: set[tuple[ProcessKey, Uuid]] = set()
        """Processes that need not be measured again: sampled, or charged by another estimate."""
        self._told: dict[str, int] = {}
        self._charged: dict[tuple[ProcessKey, Uuid], int] | None = None
        """The estimate that each process was charged by; None: no reading yet."""

    def told_bytes(self, env: str) -> int:
        """The present estimate for the env's processes."""
        return self._told.get(env, INITIAL_BYTES)

    def uncharged_bytes(self, process: Process, uuid: Uuid) -> int:
        """The bytes of its context by which the estimate has grown since it was charged."""
        told_bytes = self.told_bytes(process.env)
        charged_bytes = (self._charged or {}).get((process.key, uuid), told_bytes)
        return max(0, told_bytes - charged_bytes)

    def settle(self, gpus: Iterable[Gpu], envs: Collection[str]) -> set[str]:
        """Take over the node's GPUs and forget removed envs.

        Returns the envs with a changed estimate.
        """
        for env, model in [known for known in self._estimates if known[0] not in envs]:
            del self._estimates[env, model]
            self._samples.pop((env, model), None)
            self._remember(_key(env, model), None)
        models = {gpu.name for gpu in gpus}
        before, self._told = self._told, {}
        for (env, model), estimate_bytes in self._estimates.items():
            if model in models:
                self._told[env] = min(self._told.get(env, estimate_bytes), estimate_bytes)
        return {env for env in envs if self.told_bytes(env) != before.get(env, INITIAL_BYTES)}

    def learn(
        self,
        figures: list[Figure],
        gpus: Mapping[Uuid, Gpu],
        limits_bytes: Mapping[tuple[str, Uuid], int],
        envs: Collection[str],
    ) -> set[str]:
        """Learn from one reading; returns the envs with a changed estimate.

        `limits_bytes`: of envs with a grant, by GPU.
        """
        here = {(figure.process.key, figure.uuid) for figure in figures}
        self._sampled &= here
        before = self._charged or {}
        self._charged = {
            (one.process.key, one.uuid): before.get(
                (one.process.key, one.uuid),
                # those of an earlier manager may have been charged by any estimate
                INITIAL_BYTES if self._charged is None else self.told_bytes(one.process.env),
            )
            for one in figures
        }
        used_bytes: Counter[tuple[str, Uuid]] = Counter()
        for figure in figures:
            used_bytes[figure.process.env, figure.uuid] += figure.driver_bytes
        for figure in figures:
            where = figure.process.env, figure.uuid
            size_bytes = self._size(figure)
            if (
                size_bytes is not None
                and figure.uuid in gpus
                and used_bytes[where] <= limits_bytes.get(where, 0)
            ):
                self._learn(figure.process.env, gpus[figure.uuid].name, size_bytes)
                self._sampled.add((figure.process.key, figure.uuid))
        changed = self.settle(gpus.values(), envs)
        # Processes of these envs were charged by the estimate before.
        self._sampled |= {
            (figure.process.key, figure.uuid) for figure in figures if figure.process.env in changed
        }
        return changed

    def _size(self, figure: Figure) -> int | None:
        """The bytes of this process's context, where its figures show them."""
        if not figure.is_settled or (figure.process.key, figure.uuid) in self._sampled:
            return None
        told_bytes = self.told_bytes(figure.process.env)
        beside_bytes = figure.word_bytes - told_bytes
        if beside_bytes < 0:
            # the shim saw that the GPU lacks less than the estimate, and charged that
            return figure.driver_bytes if 0 < figure.driver_bytes < told_bytes else None
        size_bytes = figure.driver_bytes - beside_bytes
        return (
            size_bytes
            if beside_bytes <= MOST_BESIDE_BYTES and 0 < size_bytes <= MOST_BYTES
            else None
        )

    def _learn(self, env: str, model: str, size_bytes: int) -> None:
        samples = self._samples.setdefault((env, model), deque(maxlen=RETAINED_SAMPLES))
        samples.append(size_bytes)
        estimate_bytes = max(median_low(samples), INITIAL_BYTES)
        before_bytes = self._estimates.get((env, model))
        if abs(estimate_bytes - (before_bytes or INITIAL_BYTES)) < STEP_BYTES:
            if before_bytes is not None:
                return
            estimate_bytes = INITIAL_BYTES
        self._estimates[env, model] = estimate_bytes
        self._remember(_key(env, model), str(estimate_bytes))


def _key(env: str, model: str) -> str:
    return f"{META}{env}:{model}"
