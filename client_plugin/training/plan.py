"""The plan of a training: which samples each worker computes in each step, whatever their number.

Step k uses the samples [k*B, (k+1)*B) of the epoch's seeded permutation, B being the global batch.
The share of a worker is split into micro-batches of at most `max_per_gpu` samples. Pure: integers
in, integers out. Must not know: a framework, a device, the agent.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple, Union

_MASK = 2**64 - 1
_ROUNDS = 6


def mixed(*numbers: int) -> int:
    """63 bits that depend on every bit of the numbers (the finalizer of splitmix64)."""
    value = 0
    for number in numbers:
        value = (value + 0x9E3779B97F4A7C15 + (number & _MASK)) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


class Permutation:
    """A seeded permutation of range(count) without a table: a Feistel network, cycle-walked.

    A joining worker needs no shuffle of the whole epoch, and 10**9 samples take no memory. The
    order does not depend on the version of Python or of a framework.
    """

    def __init__(self, count: int, *seeds: int) -> None:
        bits = max((count - 1).bit_length(), 2)
        self._count = count
        self._right_bits = bits // 2
        self._right_mask = (1 << self._right_bits) - 1
        self._left_mask = (1 << (bits - self._right_bits)) - 1
        self._keys = [mixed(*seeds, turn) for turn in range(_ROUNDS)]

    def __getitem__(self, place: int) -> int:
        """The image of `place`. The walk stays inside a cycle, so that it ends below the count."""
        if not 0 <= place < self._count:
            raise IndexError(place)
        place = self._turned(place)
        while place >= self._count:
            place = self._turned(place)
        return place

    def _turned(self, place: int) -> int:
        left, right = place >> self._right_bits, place & self._right_mask
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right ^= mixed(key, left) & self._right_mask
            else:
                left ^= mixed(key, right) & self._left_mask
        return left << self._right_bits | right


class MicroBatch(NamedTuple):
    """One micro-batch of a step."""

    worker: int
    """The number of its virtual worker, or the rank where there are none."""
    opens: bool
    """Whether it is the first of this worker in the step."""
    closes: bool
    """Whether it is the last of this worker in the step."""
    samples: Tuple[int, ...]
    """Indices into the dataset."""


def part(count: int, number: int, parts: int) -> range:
    """The part of range(count) that `number` has; parts differ by at most one in length."""
    small, more = divmod(count, parts)
    begin = number * small + min(number, more)
    return range(begin, begin + small + (number < more))


class SamplePlan(NamedTuple):
    """The sizes that fix a training, none of which changes with the number of GPUs."""

    samples: int
    global_batch: int
    max_per_gpu: int
    epochs: int
    seed: int
    virtual_workers: int = 0
    """0: the batch is divided by the workers that there are."""
    is_in_order: bool = False
    """Whether the dataset has an order of its own, which is not permuted."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps; the samples that remain are left out of this epoch's permutation."""
        return self.samples // self.global_batch

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def samples_of(self, step: int) -> List[int]:
        """The indices of the whole step, in their order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        begin = place * self.global_batch
        return [order[position] for position in range(begin, begin + self.global_batch)]

    def _order(self, epoch: int) -> Union[Permutation, range]:
        in_order = range(self.samples)
        return in_order if self.is_in_order else Permutation(self.samples, self.seed, epoch)

    def _ranges(self, rank: int, size: int) -> List[Tuple[int, range]]:
        """The (virtual) workers of a rank, each with its positions inside the global batch."""
        if not self.virtual_workers:
            return [(rank, part(self.global_batch, rank, size))]
        held = part(self.virtual_workers, rank, size)
        return [(each, part(self.global_batch, each, self.virtual_workers)) for each in held]

    def pieces(self, step: int, rank: int, size: int) -> List[MicroBatch]:
        """The micro-batches of one rank of `size`; none where there are more ranks than work."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        begin = place * self.global_batch
        found = []
        for worker, positions in self._ranges(rank, size):
            count = -(-len(positions) // self.max_per_gpu)
            for number in range(count):
                own = part(len(positions), number, count)
                samples = tuple(order[begin + positions[place]] for place in own)
                found.append(MicroBatch(worker, number == 0, number == count - 1, samples))
        return found

    def seed_of(self, step: int, worker: int) -> int:
        """The seed of all random numbers of one (virtual) worker in one step.

        No generator state has to travel: a repeated step and a moved worker draw the same numbers.
        """
        return mixed(self.seed, 1, step, worker)

    def sample_seed(self, step: int, sample: int) -> int:
        """The seed for loading one sample: augmentation does not depend on the division."""
        return mixed(self.seed, 2, self.epoch_of(step), sample)
