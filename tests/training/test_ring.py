"""The source's ring all-reduce (CN112463340A, c7) as a reference: its rounds and its results."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.installed import later

pytestmark = pytest.mark.frameworks

torch = later("torch")


class Ring:
    """N workers, each with one queue to its right neighbour; all move in the same rounds."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds = 0
        self._links: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(size)]
        self._round = threading.Barrier(size, action=self._count)

    def _count(self) -> None:
        self.rounds += 1

    def _pass_on(self, rank: int, chunk: Any) -> Any:
        """One round: a chunk to the right, another one from the left."""
        self._links[rank].put(chunk.clone())
        received = self._links[(rank - 1) % self.size].get()
        self._round.wait()
        return received

    def all_reduce(self, rank: int, values: Any) -> None:
        """In place. N-1 rounds add what is received, N-1 rounds replace by it."""
        chunks = list(values.tensor_split(self.size))
        for turn in range(self.size - 1):
            received = self._pass_on(rank, chunks[(rank - turn) % self.size])
            chunks[(rank - turn - 1) % self.size] += received
        for turn in range(self.size - 1):
            received = self._pass_on(rank, chunks[(rank - turn + 1) % self.size])
            chunks[(rank - turn) % self.size].copy_(received)


@pytest.mark.parametrize("size", range(2, 9))
def test_the_ring_needs_two_times_n_less_one_rounds_and_agrees_with_gloo(size: int) -> None:
    ring, store = Ring(size), torch.distributed.HashStore()
    numbers = torch.Generator().manual_seed(size)
    given = [torch.randn(37, generator=numbers) for _ in range(size)]
    ours, theirs = [each.clone() for each in given], [each.clone() for each in given]

    def work(rank: int) -> None:
        ring.all_reduce(rank, ours[rank])
        group = torch.distributed.ProcessGroupGloo(store, rank, size)
        group.allreduce([theirs[rank]]).wait()

    with ThreadPoolExecutor(size) as workers:
        list(workers.map(work, range(size)))
    assert ring.rounds == 2 * (size - 1)
    for rank in range(size):
        assert torch.equal(ours[rank], ours[0])
        torch.testing.assert_close(ours[rank], theirs[rank], rtol=0, atol=1e-5)
        torch.testing.assert_close(ours[rank], torch.stack(given).sum(0), rtol=0, atol=1e-5)
