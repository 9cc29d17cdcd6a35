"""The session changes its state by csrc/client/transitions.def, and by nothing else."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import diagrams
from tests.client_c.compiled import CLIENT_SOURCES, CSRC, compile_c

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states") / "libstates.so"
    return compile_c(path, [*CLIENT_SOURCES, HERE / "states.c"], "-shared")


@pytest.fixture(scope="module")
def states(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def numbers() -> dict[str, int]:
    """The states by name, as client.h numbers them."""
    text = (CSRC / "client" / "client.h").read_text()
    return {name: int(number) for name, number in re.findall(r"NODEMGR_(\w+) = (\d+)", text)}


def test_each_event_in_each_state(states: ctypes.CDLL) -> None:
    rows = diagrams.session_rows()
    allowed = {(before, row.event): row.after for row in rows for before in row.before}
    assert len(numbers()) == 8
    assert {state for row in rows for state in (*row.before, row.after)} == set(numbers())
    refused = 0
    for number, row in enumerate(rows):
        for state, before in numbers().items():
            expected = allowed.get((state, row.event), state)
            assert states.states_after(before, number) == numbers()[expected], (state, row.event)
            refused += (state, row.event) not in allowed
    assert refused > 0
    assert states.states_said() == 1, "a refusal is reported once"


def test_the_state_is_set_by_the_table_alone() -> None:
    """One line takes the next state from the table; the last word at an exit is the other."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((CSRC / "client").glob("*.c"))
        for line in path.read_text().splitlines()
        if re.search(r"nm_session\.state = ", line)
    ]
    assert found == [
        "client.c: nm_session.state = nm_next_state(NM_EVENT_RELEASED);"
        " /* no beat comes after this */",
        "session.c: nm_session.state = state;",
    ]


UNCANCELLABLE = """
import ctypes, sys
client, libc, before = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None), ctypes.c_int()
libc.pthread_setcancelstate(1, None)  # PTHREAD_CANCEL_DISABLE
client.nm_client_gated()
libc.pthread_setcancelstate(1, ctypes.byref(before))
print(before.value)
"""


def test_the_first_look_for_a_gate_keeps_a_thread_uncancellable(library: Path) -> None:
    """It is the first contact of a program that looks up a launch function before cuInit."""
    command = [sys.executable, "-c", UNCANCELLABLE, str(library)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1\n"
