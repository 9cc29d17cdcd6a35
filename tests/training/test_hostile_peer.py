"""A worker of an elastic training that sends a joiner other bytes than a state, over gloo.

The whole program runs in both workers. Only the bytes of the hostile one are its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import later
from tests.training import programs
from tests.training.agent import HOLD, Agent

pytestmark = pytest.mark.frameworks
torch = later("torch")


class Trap:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self._path)!r}, 'w').close()",)


def pickled(path: Path, plain: Any) -> Any:
    return torch.frombuffer(bytearray(pickle.dumps(Trap(path))), dtype=torch.uint8)


def saved(path: Path, plain: Any) -> Any:
    file = path.with_suffix(".saved")
    torch.save(Trap(path), file)
    return torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)


def pickled_behind_a_head(path: Path, plain: Any) -> Any:
    """Of the right form, with a pickle as the bytes that no tensor has."""
    head = (1).to_bytes(8, "big") + b"1"
    return torch.frombuffer(bytearray(head + pickle.dumps(Trap(path))), dtype=torch.uint8)


def cut_off(_path: Path, plain: Any) -> Any:
    return plain[: plain.numel() // 2]


BYTES = {each.__name__: each for each in (pickled, saved, pickled_behind_a_head, cut_off)}


def train(variables: dict[str, str], kind: str, trap: str, unsafe: bool) -> None:
    """`unsafe`: the joiner is one that unpickles, which shows that these bytes are dangerous."""
    process_groups: Any = programs.client()._module("training.pytorch.process_groups")
    if variables["NODEMGR_WORKER"] == "0":
        plain = process_groups.packed
        process_groups.packed = lambda value: BYTES[kind](Path(trap), plain(value))
    elif unsafe:
        process_groups.unpacked = lambda whole: pickle.loads(whole.numpy().tobytes())
    programs.train(variables, "sgd", 20)


def run(directory: Path, program: Callable[..., None], *arguments: Any) -> Agent:
    """A second worker joins at step 3."""
    with Agent(directory, program, *arguments) as agent:
        agent.enter(agent.spawn())

        def join(report: dict[str, Any]) -> object:
            """The trained worker waits at this step until the joiner has a model."""
            if report.get("step") != 3 or len(agent.members) != 1:
                return None
            if 1 not in agent.warm:
                return HOLD
            agent.enter([0, 1])
            return None

        agent.on_step = join
        agent.begin(1)
        agent.until(lambda: 1 in agent.gone)
    return agent


@pytest.mark.parametrize("kind", BYTES)
def test_what_is_no_state_ends_the_joiner_and_runs_nothing(tmp_path: Path, kind: str) -> None:
    agent = run(tmp_path, train, kind, str(tmp_path / "ran"), False)
    assert agent.gone[1] != 0
    assert not (tmp_path / "ran").exists()
    assert [each for each in agent.reports if each["worker"] == 1] == []


def test_a_joiner_that_unpickles_would_run_it(tmp_path: Path) -> None:
    run(tmp_path, train, "pickled", str(tmp_path / "ran"), True)
    assert (tmp_path / "ran").exists()
