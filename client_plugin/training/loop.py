"""The loop of an elastic training: steps, resizes at their boundaries, repeats of broken ones.

Knows: the plan, the agent's channel, the order of a step. Must not know: a framework
(`TrainingFramework` is its part), or how a collective works.

A resize: each sum of gradients brings the number of workers that know of a later generation. When
all know, all enter the next one after this step. A failure: the agent names a generation that
holds at once; each survivor leaves its collective, and the step is repeated. A worker that has
completed the step already gives its state to those that have not.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Callable, Iterator, List, NamedTuple, Optional, Protocol

from .. import stderr
from ..messages.form import stated
from .calls import Broken, CollectiveThread
from .channel import ALONE, AgentChannel, GenerationMembers, Interrupted, connected
from .checkpoints import Checkpoints, check, reason
from .plan import MicroBatch, SamplePlan
from .quick_exit import end_quickly


class StepSums(NamedTuple):
    """StepSums over all workers of one step."""

    samples: float
    knowing: float
    """The workers that know of a later generation."""
    stopping: float
    """The workers on which the program called `stop`."""
    loss: float


class TrainingFramework(Protocol):
    """The part of a training that depends on the framework."""

    def structure(self) -> int:
        """A number that two equal models and optimizers have in common."""

    def checksum(self) -> int: ...

    def group(
        self, membership: GenerationMembers, rank: int, caller: Optional[CollectiveThread]
    ) -> Any: ...

    def stream(self, step: int, rank: int, size: int) -> Iterator[Any]:
        """The batches of all pieces from this step on."""

    def begin(self, piece: MicroBatch, seed: int) -> None: ...

    def add(self, loss: Any, weight: float, tape: Any) -> None:
        """The weighted gradient of one batch joins those of the step."""

    def finish(self, piece: MicroBatch) -> None:
        """The last piece of a (virtual) worker is done: its buffers are kept."""

    def reduce(self, group: Any, samples: int, knows: bool, stops: bool) -> StepSums: ...

    def apply(self) -> None: ...

    def drop(self) -> None:
        """Forgets all that the step under way has computed."""

    def snapshot(self) -> Any:
        """A copy of the whole state, on the host."""

    def restore(self, snapshot: Any) -> None: ...

    def write(self, contents: Any, file: BinaryIO) -> None: ...

    def read(self, path: str) -> Any: ...

    def save(self, path: str, contents: Any) -> None: ...


_entered: List[Run] = []
"""Of the blocks that this process is in."""


def is_inside() -> bool:
    """Whether the program is inside the block of `with elastic(...)`."""
    return bool(_entered)


def is_fitting() -> bool:
    """Whether it is inside `run.fit`."""
    return any(each.is_fitting for each in _entered)


class Run:
    """`with elastic(...) as run`: an iterable of batches."""

    def __init__(
        self,
        make: Callable[[], TrainingFramework],
        plan: SamplePlan,
        checkpoint: Optional[str],
        checkpoint_every_s: float,
    ) -> None:
        """`make`: called when this worker has its GPU, before others wait for it."""
        self.plan = plan
        self.step = 0
        """The number of completed steps."""
        self.rank = 0
        self.size = 1
        self.loss: Optional[float] = None
        """The mean loss of the last step's global batch."""
        self._make = make
        self._made: Optional[TrainingFramework] = None
        self._channel: Optional[AgentChannel] = None
        self._checkpoints = Checkpoints(
            checkpoint, checkpoint_every_s, self._write, self._report_checkpoint
        )
        self._group: Any = None
        self._generation = -1
        self._own_steps = 0
        """The steps that this worker has completed itself."""
        self._has_state = False
        self._has_ended = False
        self._is_stopping = False
        self._is_due = False
        self._is_by_epoch = False
        self.is_fitting = False
        self._stream: Optional[Iterator[Any]] = None
        self._pieces: List[MicroBatch] = []

    # -- for the program --

    @property
    def epoch(self) -> int:
        return self.plan.epoch_of(self.step)

    @property
    def is_main(self) -> bool:
        """True on one worker: validation, logs and files are its part."""
        return self.rank == 0

    def stop(self) -> None:
        """Ends the training on all workers after the step under way."""
        self._is_stopping = True

    def save(self, path: Any, contents: Any = None) -> None:
        """On the main worker: writes the model's parameters, or `contents`, and then renames.

        OSError with one line: the file was not written, and an older one stays as it is.
        """
        if not self.is_main:
            return
        absolute = os.path.abspath(path)
        try:
            self._framework.save(absolute, contents)
        except (OSError, RuntimeError) as error:  # torch.save wraps the errors of a file
            raise OSError(
                stated(
                    f"elastic: {absolute} was not written ({reason(error)}); an older file stays "
                    "as it is",
                    "free space there, or name another path",
                )
            ) from error

    @property
    def is_over(self) -> bool:
        """The training has ended on the other workers, or one of them called `stop`."""
        return self._has_ended

    def end(self) -> None:
        """All workers end here, by a decision that each of them has made."""
        self._has_ended = True

    def fit(self, **options: Any) -> Any:
        """Keras's `fit` over the batches of this run; returns its History.

        `options`: callbacks, verbose and those of the validation, as `model.fit` has them.
        """
        fit = getattr(self._made, "fit", None)
        if fit is None:
            raise TypeError(
                stated(
                    "elastic: run.fit without a compiled model of Keras and its own optimizer",
                    "call elastic(model, model.optimizer, ...) after model.compile",
                )
            )
        self.is_fitting = True
        try:
            return fit(self, options)
        finally:
            self.is_fitting = False

    def epochs(self) -> Iterator[int]:
        """The epochs that are left; in the body `for batch in run` has the batches of one."""
        self._is_by_epoch = True
        try:
            while self.step < self.plan.steps and not self._has_ended:
                before = self.step
                yield self.epoch
                if self.step == before:
                    return
        finally:
            self._is_by_epoch = False

    def __enter__(self) -> Run:
        if _entered:
            raise RuntimeError(
                stated(
                    "elastic: a block inside the block of another one",
                    "end the outer block before it",
                )
            )
        if self._made is not None:
            raise RuntimeError(
                stated(
                    "elastic: the block of this run was entered before",
                    "call elastic(...) for each block",
                )
            )
        _entered.append(self)
        try:
            self._enter()
        except BaseException:
            _entered.remove(self)
            raise
        return self

    def _enter(self) -> None:
        channel = self._channel = connected(os.environ, os.environ.__setitem__)
        self._made = self._make()
        self._framework.drop()  # gradients that the program has computed before
        if channel is None:
            self._group = self._framework.group(ALONE, 0, None)
            self._join(ALONE)
            self._generation = 0
            return
        channel.enter()
        try:
            first = channel.wait_newer(-1)
        except Interrupted:
            if not channel.is_over:
                self._leave()
            self.rank, self._has_ended = -1, True
            return
        self._form(first)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _entered.remove(self)
        is_failure = kind is not None and issubclass(kind, Exception)
        if not is_failure:
            self._forget_step()
        self._checkpoints.settle()
        if kind is None and self.is_main:
            self._checkpoints.final(self._snapshot)
        if self._group is not None:
            self._group.close(False)
        if self._channel is None:
            return
        if kind is None:
            self._channel.leave(self._has_ended or self.step >= self.plan.steps)
        elif kind is not SystemExit:
            self._channel.fail(self.step + 1, self._own_steps + 1)

    def __iter__(self) -> Iterator[Any]:
        if self._made is None and not self._has_ended:
            raise RuntimeError(
                stated(
                    "elastic: the loop runs outside of its block", "use `with elastic(...) as run`"
                )
            )
        last = self.plan.steps
        if self._is_by_epoch:
            last = min(last, (self.epoch + 1) * self.plan.steps_per_epoch)
        while True:
            while self.step < last and not self._has_ended:
                self._obey()
                yield from self._batches()
            if self.step < self.plan.steps and not self._has_ended:
                return
            if self._group is None or self._is_settled():
                return

    def backward(self, loss: Any, tape: Any = None) -> None:
        """The gradient of this batch's mean loss; the last one of a step updates the parameters.

        `tape`: with TensorFlow, the one that recorded the loss.
        """
        if not self._pieces:
            raise RuntimeError(
                stated(
                    "elastic: run.backward(loss) without a batch of the loop",
                    "call it once for each batch of `for batch in run`",
                )
            )
        piece = self._pieces[0]
        self._framework.add(loss, len(piece.samples) / self.plan.global_batch, tape)
        self._pieces.pop(0)
        if piece.closes:
            self._framework.finish(piece)
        if not self._pieces:
            self._finish_step()

    # -- one step --

    def _batches(self) -> Iterator[Any]:
        """The batches of this worker's share of one step."""
        self._forget_step()
        if self._stream is None:
            self._stream = self._framework.stream(self.step, self.rank, self.size)
        self._pieces = self.plan.pieces(self.step, self.rank, self.size)
        if not self._pieces:
            self._finish_step()
            return
        for number in range(len(self._pieces), 0, -1):
            piece = self._pieces[0]
            batch = next(self._stream)
            self._framework.begin(piece, self.plan.seed_of(self.step, piece.worker))
            yield batch
            if len(self._pieces) == number:
                raise RuntimeError(
                    stated(
                        "elastic: the loop asked for the next batch before run.backward(loss)",
                        "call it once for each batch",
                    )
                )

    def _forget_step(self) -> None:
        """A step that the program has left in its middle is made again from its beginning."""
        if self._pieces:
            self._framework.drop()
            self._pieces, self._stream = [], None

    def _finish_step(self) -> None:
        later = self._channel is not None and self._channel.newer(self._generation) is not None
        held = self.plan.pieces(self.step, self.rank, self.size)
        samples = sum(len(piece.samples) for piece in held)
        try:
            sums = self._framework.reduce(self._group, samples, later, self._is_stopping)
        except Broken as error:
            self._repair(error)
            return
        if sums.samples != self.plan.global_batch:
            raise RuntimeError(
                stated(
                    f"elastic: step {self.step} added {sums.samples} samples instead of "
                    f"{self.plan.global_batch}",
                    "all workers must run the same script with the same arguments",
                )
            )
        self._framework.apply()
        self.step += 1
        self._own_steps += 1
        self.loss = sums.loss
        self._has_ended = self._has_ended or sums.stopping > 0
        if self.is_main:
            self._checkpoints.offer(self._snapshot)
        self._is_due = sums.knowing == self.size

    def _is_settled(self) -> bool:
        """Whether all members have completed the last step."""
        try:
            self._group.gather([self.step])
        except Broken as error:
            self._repair(error)
            return False
        return True

    # -- generations --

    def _obey(self) -> None:
        """Between two steps: enters a generation that is due, or holds at once."""
        if self._channel is None:
            return
        if self._channel.end is not None:
            self._leave()
        urgent = self._channel.urgent(self._generation)
        if urgent is not None:
            self._framework.drop()
            self._group.close(True)
            self._form(urgent)
            return
        newer = self._channel.newer(self._generation) if self._is_due else None
        if newer is not None:
            self._form(newer)

    def _repair(self, error: Broken) -> None:
        self._framework.drop()
        self._group.close(True)
        self._form(self._next(error))

    def _next(self, error: Broken) -> GenerationMembers:
        """After a broken collective: the generation that the agent names."""
        assert self._channel is not None
        if self._channel.newer(self._generation) is None:
            self._channel.send(
                **{"is": "failed", "generation": self._generation, "why": str(error)[:500]}
            )
        try:
            return self._channel.wait_newer(self._generation)
        except Interrupted:
            self._leave()
            raise

    def _form(self, membership: GenerationMembers) -> None:
        """Enters a generation: the group is formed, and every member has the same state."""
        assert self._channel is not None
        old, self._is_due = self._group, False
        while True:
            self._generation = membership.generation
            if self._channel.worker not in membership.workers:
                self._leave()
            self.size = membership.size
            self.rank = membership.workers.index(self._channel.worker)
            caller = CollectiveThread(self._channel, self._generation)
            self._group = None
            try:
                self._group = self._framework.group(membership, self.rank, caller)
                self._join(membership)
                break
            except Broken as error:
                if self._group is not None:
                    self._group.close(True)
                membership = self._next(error)
        if old is not None:  # its last packets may have been on their way until now
            old.close(False)
        caller.formed()
        self._stream = None
        self._pieces = []
        self._channel.send(**{"is": "resized", "generation": self._generation})

    def _join(self, membership: GenerationMembers) -> None:
        """The members that are behind receive the state of the first that is not."""
        found = self._group.gather(self._standing())
        if all(step < 0 for _, step, _ in found):
            if self.rank == 0:
                self._resume()
            found = self._group.gather(self._standing())
        newest = max(step for _, step, _ in found)
        root = next(rank for rank, each in enumerate(found) if each[1] == newest)
        worker, first = membership.workers[self.rank], membership.workers[root]
        if found[self.rank][0] != found[root][0]:
            raise ValueError(
                stated(
                    f"elastic: worker {worker} has another model, optimizer or plan than worker "
                    f"{first}",
                    "build the same ones on every worker",
                )
            )
        for rank, standing in enumerate(found):
            if standing == found[root] or standing[0] != found[root][0]:
                continue
            if self.rank == root:
                self._group.send(rank, self._snapshot())
            elif self.rank == rank:
                if standing[1] == newest:
                    step = max(newest, 0)
                    stderr.say(
                        f"elastic: the parameters of worker {worker} differed from those of worker "
                        f"{first} at step {step}, and were replaced by them; change parameters on "
                        "every worker alike"
                    )
                self._restore(self._group.receive(root))
        self._has_state = True

    def _standing(self) -> List[int]:
        """The structure of the model, the number of completed steps and the checksum."""
        step = self.step if self._has_state else -1
        return [self._framework.structure(), step, self._framework.checksum()]

    def _leave(self) -> None:
        """This worker is not needed any more: the process ends as if the script had ended."""
        assert self._channel is not None
        self._checkpoints.settle()
        end_quickly()
        self._channel.send(**{"is": "leaving", "generation": self._generation})
        raise SystemExit(0)

    # -- state --

    @property
    def _framework(self) -> TrainingFramework:
        assert self._made is not None
        return self._made

    def _write(self, contents: Any, file: BinaryIO) -> None:
        self._framework.write(contents, file)

    def _snapshot(self) -> Any:
        contents = {"step": self.step, "has_ended": self._has_ended, "loss": self.loss}
        return {**contents, "structure": self._framework.structure(),
                "framework": self._framework.snapshot()}  # fmt: skip

    def _restore(self, snapshot: Any) -> None:
        self._framework.restore(snapshot["framework"])
        self.step = snapshot["step"]
        self.loss = snapshot["loss"]
        self._has_ended = snapshot["has_ended"]

    def _resume(self) -> None:
        """From the newest checkpoint on disk that can be read, where there is one."""
        damage = ""
        for path in self._checkpoints.found():
            try:
                check(path)
                snapshot = self._framework.read(path)
                structure = snapshot["structure"]
            except Exception as error:
                first = (str(error).splitlines() or [type(error).__name__])[0]
                damage = damage or f"elastic: the checkpoint {path} cannot be read ({first})"
                continue
            if structure != self._framework.structure():
                raise ValueError(
                    stated(
                        f"elastic: the checkpoint {path} belongs to another model, optimizer or "
                        "plan",
                        "name another path, or remove it to begin at step 0",
                    )
                )
            if damage:
                stderr.say(f"{damage}; the one before it, {path}, takes its place")
                self._checkpoints.drop_newest()
            self._restore(snapshot)
            self._has_state = True
            self._report_checkpoint(snapshot)
            stderr.say(f"elastic: goes on from {path} at step {self.step} of {self.plan.steps}")
            return
        if damage:
            raise ValueError(stated(damage, "remove it to begin at step 0"))

    def _report_checkpoint(self, snapshot: Any) -> None:
        if self._channel is not None:
            self._channel.send(**{"is": "checkpoint", "step": snapshot["step"] + 1})
