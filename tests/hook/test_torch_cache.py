"""PyTorch's cache goes back when the limit of a range of memory has shrunk, and only then."""

from __future__ import annotations

import pytest

from client_plugin import stderr
from client_plugin.adapters import torch_cache
from client_plugin.adapters.torch_cache import PERIOD_S, CacheWatch

from .conftest import World


class FakeCuda:
    """torch.cuda with two GPUs; the program uses the first."""

    def __init__(self) -> None:
        self.limits = {0: 8, 1: 8}
        self.reserved = {0: 1, 1: 0}
        self.asked: list[int] = []
        self.emptied = 0
        self.initialized, self.capturing = True, False

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def device_count(self) -> int:
        return len(self.limits)

    def memory_reserved(self, index: int) -> int:
        return self.reserved[index]

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.asked.append(index)
        return 0, self.limits[index]

    def empty_cache(self) -> None:
        self.emptied += 1


class Program:
    """Steps of an optimizer under a clock of the test."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.now_s = 0.0
        self._watch = CacheWatch(self.cuda, lambda: self.now_s)

    def steps(self, after_s: float = PERIOD_S) -> int:
        """How often the cache was emptied until now."""
        self.now_s += after_s
        self._watch.step(None, (), {})
        return self.cuda.emptied


@pytest.fixture
def program() -> Program:
    return Program()


def test_each_lowered_limit_empties_the_cache_once(program: Program) -> None:
    assert program.steps() == program.steps() == 0
    program.cuda.limits[0] = 6
    assert program.steps() == program.steps() == 1
    program.cuda.limits[0] = 4
    assert program.steps() == 2
    program.cuda.limits[0] = 8
    assert program.steps() == 2, "a limit that grows takes nothing"


def test_the_limits_are_read_once_in_a_period(program: Program) -> None:
    program.steps()
    program.cuda.limits[0] = 6
    assert program.steps(PERIOD_S / 2) == 0
    assert program.steps(PERIOD_S / 2) == 1


def test_a_gpu_without_memory_of_the_program_is_not_asked(program: Program) -> None:
    program.steps()
    assert program.cuda.asked == [0]
    program.cuda.reserved[1] = 1
    program.cuda.limits[1] = 2
    assert program.steps() == 0, "its first limit is not a lower one"


def test_nothing_happens_before_the_first_use_and_in_a_graph(program: Program) -> None:
    program.cuda.initialized = False
    program.steps()
    assert program.cuda.asked == []
    program.cuda.initialized = True
    program.steps()
    program.cuda.limits[0], program.cuda.capturing = 6, True
    assert program.steps() == 0
    program.cuda.capturing = False
    assert program.steps() == 1


def test_a_fault_is_reported_once_and_harms_no_step(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(stderr, "report", lambda what, error: told.append(f"{what}: {error}"))
    monkeypatch.setattr(program.cuda, "mem_get_info", lambda index: 1 // 0)
    program.steps()
    program.steps()
    assert len(told) == 1


@pytest.mark.parametrize(("memory", "wanted"), [("1-8", True), ("8", False), (None, False)])
def test_only_a_range_is_watched(
    memory: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODEMGR_MEMORY", raising=False)
    if memory is not None:
        monkeypatch.setenv("NODEMGR_MEMORY", memory)
    assert torch_cache.wanted() is wanted


@pytest.mark.frameworks
@pytest.mark.parametrize(("memory", "preloaded", "hooks"), [
    ("1-8", True, 1), ("8", True, 0), ("1-8", False, 0),
])  # fmt: skip
def test_the_hook_of_torch_watches_a_range_under_the_shim(
    world: World, memory: str, preloaded: bool, hooks: int
) -> None:
    world.environ["NODEMGR_MEMORY"] = memory
    world.script["preloaded"] = preloaded
    child = world.run("""
        import sys, torch
        weights = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        weights.sum().backward()
        optimizer.step()
        print(len(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks))
        """)
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{hooks}\n", "")
