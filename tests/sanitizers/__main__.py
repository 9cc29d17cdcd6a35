"""`python -m tests.sanitizers`: the C under ASan with UBSan, then under TSan.

Exit code 1 where either found anything.

The shim is built with the sanitizer and preloaded into every program of the shim's tests, each hook
among them; beside these run the tests that build the client, the ledger, the codec and the table of
blocks with sanitizers themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.client_c.compiled import ENVIRONMENT
from tests.shim.test_sanitized import RUNTIMES, runtime, sanitized_library
from tests.shim.world import PRELOAD_VARIABLE

SUBJECTS = (
    "hooks/test_every_hook", "memory/test_quota", "memory/test_graphs", "memory/test_contexts",
    "memory/test_endings", "memory/test_mappings", "memory/test_figures", "hooks/test_addresses",
    "memory/test_exports",
)  # fmt: skip
GATE_SUBJECTS = ("test_turns", "test_routes", "test_hostile")
PRELOADED = [
    *(f"tests/shim/{subject}.py" for subject in SUBJECTS),
    *(f"tests/launches/{subject}.py" for subject in GATE_SUBJECTS),
]
ENDINGS = "tests/shim/memory/test_endings.py::test_a_process_"
MAIN_THREAD_ENDS = (
    f"{ENDINGS}whose_own_threads_have_ended_ends_as_without_us",
    f"{ENDINGS}goes_on_without_its_main_thread",
)
"""Left out under TSan, which cannot run them without us either.

Its own thread goes on in each process, as one of the program's would, and it ends a program that
joins its main thread.
"""
# a forked child of a program with threads starts its own: TSan ends it for that unless told
# otherwise
WATCHED = {**ENVIRONMENT, "TSAN_OPTIONS": ENVIRONMENT["TSAN_OPTIONS"] + ":die_after_fork=0"}
BUILT = [
    "tests/shim/test_sanitized.py",
    "tests/client_c/test_guest.py",
    "tests/ledger",
    "tests/wire",
    "tests/supervisor/test_attempt_inside.py",
    "tests/programs/test_front.py",
    "tests/sim/test_races.py",
]


def pytest_passes(paths: list[str], **variables: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode == 0


def main() -> int:
    passed = []
    for sanitizer, runtimes in RUNTIMES.items():
        with tempfile.TemporaryDirectory() as directory:
            library = sanitized_library(Path(directory), sanitizer)
            preload = ":".join([*map(runtime, runtimes), str(library)])
            left_out = MAIN_THREAD_ENDS if sanitizer == "thread" else ()
            asked = [*PRELOADED, *(f"--deselect={test}" for test in left_out)]
            passed.append(pytest_passes(asked, **{PRELOAD_VARIABLE: preload}, **WATCHED))
        print(
            f"the library under the {sanitizer} sanitizer: {'passed' if passed[-1] else 'FAILED'}",
            flush=True,
        )
    passed.append(pytest_passes(BUILT))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
