"""A thread beside the loop takes no signal, and hides no fault of its own."""

from __future__ import annotations

import signal

from nodemgr.edge.host import threads
from tests.conftest import ROOT


def test_a_thread_takes_no_signal_but_those_of_its_own_faults() -> None:
    masks: list[set[signal.Signals]] = []
    thread = threads.start(
        lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "a name"
    )
    thread.join()
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} <= masks[0]
    assert masks[0].isdisjoint(threads.FAULTS)
    assert (thread.name, thread.daemon) == ("a name", True)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_no_other_thread_is_started_in_the_manager() -> None:
    """It would take the second SIGTERM of a manager that ends."""
    others = [
        path
        for path in (ROOT / "nodemgr" / "edge").rglob("*.py")
        if "threading.Thread(" in path.read_text() and path.name != "threads.py"
    ]
    assert others == []
