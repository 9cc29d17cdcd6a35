"""A manager ends cleanly, with one line, however often it is told to end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr import cli
from nodemgr.edge import service
from nodemgr.edge.service import Service
from nodemgr.edge.setup.settings import Settings
from tests.support.manager import PROGRAM, Manager

Make = Callable[..., Manager]


@pytest.mark.parametrize("number", service.ENDINGS, ids=lambda number: number.name)
def test_a_manager_that_is_told_to_end_again_and_again_ends_once(
    make_manager: Make, number: signal.Signals
) -> None:
    """To its very last instruction: the interpreter's own end takes the longest."""
    manager = make_manager(simulate="1x8GiB", program=PROGRAM)
    assert manager.process is not None
    while manager.process.poll() is None:
        manager.process.send_signal(number)
    assert manager.wait() == 0, manager.log
    assert (
        manager.log.count(
            f"nodemgr: ends ({number.name}); GPUs and memory stay with 0 running tasks\n"
        )
        == 1
    )
    assert "Traceback" not in manager.log


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError("a socket"), RuntimeError("a fault")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("step", ["open", "run"])
def test_a_fault_that_ends_a_manager_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    step: str,
    error: Exception,
) -> None:
    """A broken pipe, too.

    Elsewhere it would be the reader of a verb's output; here it is unexpected.
    """

    class Failing:
        def __init__(self, settings: Settings, **_: object) -> None:
            pass

        def open(self) -> None:
            if step == "open":
                raise error

        def run(self) -> None:
            raise error

    monkeypatch.setattr(service, Service.__name__, Failing)
    code = cli.main(
        [
            "serve",
            "--simulate",
            "1x1GiB",
            "--run-dir",
            str(tmp_path / "run"),
            "--state-dir",
            str(tmp_path / "state"),
        ]
    )
    first, *_, last = capsys.readouterr().err.splitlines()
    assert code == 1
    assert first == (
        f"nodemgr: internal fault that ends the manager: {error!r}; please report it with the lines"
        " below"
    )
    assert (
        last == "nodemgr: ended by an internal fault, reported above; running tasks go on: start it"
        " again, and please report the fault"
    )
