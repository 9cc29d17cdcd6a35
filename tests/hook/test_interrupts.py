"""An exception that ended a wait inside a C call is raised from the program's call.

No statement behind the call runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, interpreters

PROGRAM = """
import ctypes, sys
sys.path.insert(0, {root!r})
from client_plugin import interrupts
interrupts.TRACED_S = 60  # the thread comes back to its frame later on a busy machine
def wait():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        interrupts.defer(error, wait.__code__)
    return 0
call = ctypes.CFUNCTYPE(ctypes.c_int)(wait)
def use():
    return print(call()) or print("late")
{use}
print("late")
"""

USES = {
    "behind it on its line": "use(); print('late')",
    "as an argument": "print(call(), [print('late')])",
    "in a class": "class C: use()",
}


@pytest.mark.parametrize("python", interpreters())
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_no_instruction_behind_the_call_runs(python: str, use: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT), use=use))
    ran = subprocess.run([python, program], capture_output=True, text=True, check=False)
    assert ran.stdout == ""
    assert ran.stderr.endswith("KeyboardInterrupt\n")
    modern = (
        subprocess.run(
            [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False
        ).returncode
        == 0
    )
    assert ("interrupts.py" in ran.stderr) is not modern


def test_a_frame_that_traces_instructions_itself_goes_on_so(tmp_path: Path) -> None:
    """By a debugger that has set its mark and does not trace at the moment."""
    program = tmp_path / "program.py"
    marked = (
        "frame = sys._getframe(); frame.f_trace_opcodes = True\ntry: use()\nexcept"
        " KeyboardInterrupt: pass\n"
    )
    marked += "assert frame.f_trace_opcodes and frame.f_trace is None and sys.gettrace() is None"
    program.write_text(PROGRAM.format(root=str(ROOT), use=marked))
    ran = subprocess.run([interpreters()[-1], program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("late\n", "")
