"""A training by TensorFlow: gradients, buffers, random numbers and the state that joiners receive.

Knows: the model, the optimizer, the dataset. Must not know: the agent, generations.

All that a step sums lies in one array: the loop's numbers, a flag for each variable, the
gradients, the buffers of each virtual worker.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from ... import stderr
from ...messages import training as messages
from ...messages.form import stated
from ..calls import CollectiveThread
from ..channel import GenerationMembers
from ..checkpoints import replaced
from ..datasets import sample_of, seed_python
from ..loop import StepSums
from ..plan import MicroBatch, SamplePlan
from . import arrays
from .global_batches import GlobalBatches
from .socket_group import SocketGroup

NUMBERS = 4
"""Samples, workers that know of a later generation, workers that stop, the loss."""
SEEDS = "seed_generator_state"
"""The end of the names of Keras's variables that hold the states of its generators."""


class VariableParts(NamedTuple):
    """The program's own objects."""

    model: Any
    optimizer: Any
    dataset: Any
    clip_norm: Optional[float]


class VariableTraining:
    """The framework's part of a run."""

    def __init__(self, parts: VariableParts, plan: SamplePlan) -> None:
        self._parts = parts
        self._plan = plan
        self._trained = list(parts.model.trainable_variables)
        if not self._trained:
            raise ValueError(
                stated(
                    "elastic: the model has no variables to train yet",
                    "begin it with keras.Input, or call it once before the block",
                )
            )
        self._buffers = buffers_of(parts.model)
        self._seeds = [each for each in _every(parts.model) if _name(each).endswith(SEEDS)]
        if hasattr(parts.optimizer, "build"):
            parts.optimizer.build(self._trained)
        kinds = {_kind(each) for each in [*self._trained, *self._buffers]}
        self._kind = np.float32 if kinds <= {"float32", "float16", "bfloat16"} else np.float64
        self._rows = [self._copied() for _ in range(plan.virtual_workers or 1)]
        self._fresh: Dict[int, List[Any]] = {}
        self._gradients: List[Any] = [None] * len(self._trained)
        self._loss = 0.0
        self._total: Any = None
        self._read: Optional[int] = None
        """The digest of this worker's batch of the step, where it reads whole batches."""

    # -- one step --

    def stream(self, step: int, rank: int, size: int) -> Iterator[Any]:
        for each in range(step, self._plan.steps):
            for piece in self._plan.pieces(each, rank, size):
                yield self._batch(each, piece)

    def _batch(self, step: int, piece: MicroBatch) -> Any:
        dataset, samples = self._parts.dataset, list(piece.samples)
        if isinstance(dataset, GlobalBatches):
            begin = samples[0] % self._plan.global_batch
            return dataset[step, begin, begin + len(samples)]
        if isinstance(dataset, Together):
            return tuple(tf.convert_to_tensor(each[samples]) for each in dataset.columns)
        loaded = []
        for sample in samples:
            seed_python(self._plan.sample_seed(step, sample))
            loaded.append(sample_of(dataset, sample))
        if isinstance(loaded[0], (tuple, list)):
            return tuple(tf.convert_to_tensor(np.stack(column)) for column in zip(*loaded))
        return tf.convert_to_tensor(np.stack(loaded))

    def begin(self, piece: MicroBatch, seed: int) -> None:
        if not piece.opens:
            return
        tf.random.set_seed(seed)
        seed_python(seed)
        for number, state in enumerate(self._seeds):
            state.assign(np.array([seed % 2**31, number], np.uint32))
        self._load(self._rows[piece.worker if self._plan.virtual_workers else 0])

    def add(self, loss: Any, weight: float, tape: Any) -> None:
        """The weighted gradient of one batch; `tape` recorded its loss."""
        if tape is None:
            raise TypeError(
                stated(
                    "elastic: run.backward(loss) without the tape of TensorFlow that recorded the "
                    "loss",
                    "call run.backward(loss, tape)",
                )
            )
        if not tf.is_tensor(loss) or loss.shape.num_elements() != 1:
            is_tensor = tf.is_tensor(loss)
            found = f"a tensor of shape {loss.shape}" if is_tensor else type(loss).__name__
            raise ValueError(messages.NO_LOSS(found=found))
        self._loss += float(loss) * weight
        for number, gradient in enumerate(tape.gradient(loss, self._sources())):
            if gradient is not None:
                if isinstance(gradient, tf.IndexedSlices):
                    self._say_that_rows_are_summed(self._trained[number])
                own = tf.cast(tf.convert_to_tensor(gradient), self._kind) * weight
                before = self._gradients[number]
                self._gradients[number] = own if before is None else before + own

    def _say_that_rows_are_summed(self, variable: Any) -> None:
        """Of an embedding: SGD alone makes the same of a sum."""
        kind = type(self._parts.optimizer).__name__
        if kind != "SGD" and os.environ.get("RANK", "0") == "0":
            stderr.say_once(
                f"elastic: {kind} gets one summed gradient of {_name(variable)}: Keras's own loop "
                "gives it each word of a batch by itself, so losses differ from that loop"
            )

    def finish(self, piece: MicroBatch) -> None:
        if self._plan.virtual_workers or piece.worker == 0:
            self._fresh[piece.worker] = self._copied()

    def reduce(self, group: SocketGroup, samples: int, knows: bool, stops: bool) -> StepSums:
        self._skip_frozen()
        parts = [np.array([samples, knows, stops, self._loss], self._kind)]
        parts.append(np.array([each is not None for each in self._gradients], self._kind))
        for variable, gradient in zip(self._trained, self._gradients):
            zeros = np.zeros(_count(variable), self._kind)
            parts.append(zeros if gradient is None else gradient.numpy().reshape(-1))
        for number in range(len(self._rows)):
            for place, buffer in enumerate(self._buffers):
                fresh = self._fresh.get(number)
                zeros = np.zeros(_count(buffer), self._kind)
                parts.append(zeros if fresh is None else fresh[place].reshape(-1))
        parts += [np.reshape(each, -1) for each in self.extra()]
        total = group.sum(np.concatenate([each.astype(self._kind) for each in parts]))
        self._total = total
        return StepSums(*(float(each) for each in total[:NUMBERS]))

    def apply(self) -> None:
        offset = NUMBERS + len(self._trained)
        pairs = []
        for variable, flag in zip(self._trained, self._total[NUMBERS:offset]):
            count = _count(variable)
            if flag:
                values = self._total[offset : offset + count].reshape(variable.shape)
                pairs.append((tf.cast(tf.convert_to_tensor(values), variable.dtype), variable))
            offset += count
        if self._parts.clip_norm is not None:
            clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], self._parts.clip_norm)
            pairs = list(zip(clipped, [variable for _, variable in pairs]))
        self._parts.optimizer.apply_gradients(pairs)
        for row in self._rows:
            for place, buffer in enumerate(self._buffers):
                count = _count(buffer)
                values = self._total[offset : offset + count].reshape(buffer.shape)
                row[place] = values.astype(row[place].dtype)
                offset += count
        self.take_extra(self._total[offset:])
        self.drop()

    def extra(self) -> List[Any]:
        """Further arrays of the sum: where each worker reads the dataset, what it has read."""
        if not isinstance(self._parts.dataset, GlobalBatches):
            return []
        self._read = self._parts.dataset.digest()
        return [np.array([0.0, 0.0] if self._read is None else [1.0, self._read])]

    def take_extra(self, sums: Any) -> None:
        """Raises ValueError: another worker has read another batch."""
        if self._read is not None and sums[0] * self._read != sums[1]:
            raise ValueError(
                stated(
                    "elastic: the workers have read different batches in one step",
                    "give the shuffle of the tf.data.Dataset a seed, and call "
                    "tf.random.set_seed before it",
                )
            )

    def drop(self) -> None:
        self._gradients = [None] * len(self._trained)
        self._fresh, self._loss, self._total = {}, 0.0, None
        self._load(self._rows[0])

    def _skip_frozen(self) -> None:
        """A tape records frozen variables, too; the program may freeze layers at any step."""
        now = {id(each): each for each in self._parts.model.trainable_variables}
        for number, variable in enumerate(self._trained):
            if now.pop(id(variable), None) is None:
                self._gradients[number] = None
        for variable in now.values():
            raise ValueError(
                stated(
                    f"elastic: {_name(variable)} became trainable inside the block",
                    "make it trainable before the block, and freeze it inside",
                )
            )

    def _sources(self) -> List[Any]:
        """A tape knows TensorFlow's variables, which Keras's hold."""
        return [getattr(each, "value", each) if hasattr(each, "path") else each
                for each in self._trained]  # fmt: skip

    # -- buffers --

    def _copied(self) -> List[Any]:
        return [array_of(each) for each in self._buffers]

    def _load(self, row: List[Any]) -> None:
        for buffer, values in zip(self._buffers, row):
            buffer.assign(values)

    # -- joining --

    def group(
        self, membership: GenerationMembers, rank: int, thread: Optional[CollectiveThread]
    ) -> SocketGroup:
        return SocketGroup(membership, rank, thread)

    def structure(self) -> int:
        held = [*self._trained, *self._buffers, *_optimizer_variables(self._parts.optimizer)]
        named = [(tuple(each.shape), _kind(each)) for each in held]
        plan = self._plan._replace(epochs=0, max_per_gpu=0)
        text = repr((named, type(self._parts.optimizer).__name__, tuple(plan)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")

    def checksum(self) -> int:
        total = 0
        values = [array_of(each) for each in self._trained]
        for each in [*values, *(buffer for row in self._rows for buffer in row)]:
            total = zlib.crc32(np.ascontiguousarray(each).tobytes(), total)
        return total

    # -- state --

    def snapshot(self) -> Any:
        optimizer = _optimizer_variables(self._parts.optimizer)
        return {
            "variables": [array_of(each) for each in self._trained],
            "layers": [bool(each.trainable) for each in _layers(self._parts.model)],
            "rows": [list(row) for row in self._rows],
            "optimizer": [array_of(each) for each in optimizer],
        }

    def restore(self, snapshot: Any) -> None:
        for layer, trainable in zip(_layers(self._parts.model), snapshot["layers"]):
            layer.trainable = trainable  # a layer before the layers inside it
        for variable, values in zip(self._trained, snapshot["variables"]):
            variable.assign(values)
        held = _optimizer_variables(self._parts.optimizer)
        for variable, values in zip(held, snapshot["optimizer"]):
            variable.assign(values)
        self._rows = [list(row) for row in snapshot["rows"]]
        self.drop()

    def write(self, contents: Any, file: BinaryIO) -> None:
        arrays.write(contents, file)

    def read(self, path: str) -> Any:
        return arrays.read(path)

    def save(self, path: str, contents: Any) -> None:
        """`contents`: arrays; without them the model, as Keras saves it, or its variables."""
        if contents is None and hasattr(self._parts.model, "save"):
            _save_model(self._parts.model, path)
            return
        if contents is None:
            contents = [array_of(each) for each in _every(self._parts.model)]
        replaced(path, lambda file: arrays.write(contents, file))


class Together:
    """Arrays of one length as a dataset of tuples."""

    def __init__(self, columns: Any) -> None:
        """Raises ValueError: they have other lengths."""
        self.columns = [np.asarray(each) for each in columns]
        lengths = [len(each) for each in self.columns]
        if len(set(lengths)) > 1:
            text = " and ".join(str(each) for each in lengths)
            raise ValueError(
                stated(
                    f"elastic: the arrays of the dataset have {text} samples",
                    "give arrays of one length",
                )
            )

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, sample: Any) -> Any:
        return tuple(each[sample] for each in self.columns)


def buffers_of(model: Any) -> List[Any]:
    """Variables that a step changes and no gradient does, as batch statistics."""
    if hasattr(model, "_flatten_layers"):
        found = [
            each for layer in _layers(model)
            for each in getattr(layer, "_non_trainable_variables", [])
        ]  # fmt: skip
    else:
        found = [each for each in model.variables if not each.trainable]
    once = {id(each): each for each in found if not _name(each).endswith(SEEDS)}
    return list(once.values())


def _layers(model: Any) -> List[Any]:
    """Each layer of Keras, before the layers inside it; none of a tf.Module."""
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else []


def _save_model(model: Any, path: str) -> None:
    """As Keras saves it: by the name's end one file, or a directory of Keras 2."""
    folder, name = os.path.split(path)
    fresh = os.path.join(folder, "new." + name)
    try:
        model.save(fresh)
        if os.path.isdir(fresh):
            shutil.rmtree(path, ignore_errors=True)
        os.replace(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise


def array_of(variable: Any) -> Any:
    """A copy of its values on the host."""
    return np.array(variable.numpy())


def _every(model: Any) -> List[Any]:
    return list(model.variables)


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).split(":")[0]


def _kind(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))


def _count(variable: Any) -> int:
    return int(np.prod([int(each) for each in variable.shape], dtype=np.int64))


def _optimizer_variables(optimizer: Any) -> List[Any]:
    held = optimizer.variables
    return list(held() if callable(held) else held)
