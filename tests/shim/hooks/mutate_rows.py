"""Is there a test for every row of csrc/hooks/hooks.def?

Takes each row out in turn and says by which route nothing noticed.

Run by hand: `python -m tests.shim.hooks.mutate_rows [NAME...]`, some five minutes for all rows. The
exit code is the number of survivors. Knows: how interpose.c makes its table from hooks.def. Must
not know: what any hook does.

A row that is taken out keeps its number and its originals, so that all other files are compiled
once, from a copy of the tree; its name is neither exported nor found, as if the line had never
been written. Then only the checks that name the row are run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from csrc import build, toolchain
from tests.shim.world import CSRC, ROOT, hooks

EXPORT = (
    "#define NM_HOOK(library, name, base, since, stream, away, types) \\\n"
    "    NM_WAY_##away(name, types) "
)
ROW = (
    "#define NM_HOOK(library, name, base, since, stream, away, types)                             "
    " \\\n    {#name, #base"
)
HIDDEN_ROW = '{"", "", 0, 0, NULL, NULL, 0, NM_STREAM_ANY, NM_LIBRARY_##library},'
ROUTES = ("linked", "dlsym", "getproc")
OTHERS = {
    "cuGraphExecDestroy": (
        "tests/shim/memory/test_graphs.py"
        "::test_a_destroyed_graphs_need_is_not_that_of_the_next_with_its_address"
    )
}
"""Checks that are no scenarios: what they need ends with a line for the user."""


def mutant_of(source: str) -> str:
    """interpose.c without the row NM_HIDDEN in its table and exports."""
    assert EXPORT in source, "interpose.c makes its exports in another way: change this script"
    assert ROW in source, "interpose.c makes its table in another way: change this script"
    for at, hidden in ((EXPORT, ""), (ROW, HIDDEN_ROW)):
        before, after = source.split(at)
        source = (
            f"{before}#undef NM_HIDDEN\n#define NM_HIDDEN(library, name, base, since, stream,"
            f" away, types) {hidden}\n{at}{after}"
        )
        head, tail = source.rsplit(at, 1)
        body, rest = tail.split('#include "hooks/hooks.def"\n', 1)
        restored = "#undef NM_HIDDEN\n#define NM_HIDDEN NM_HOOK\n"
        source = f'{head}{at}{body}#include "hooks/hooks.def"\n{restored}{rest}'
    return source


class Workshop:
    """A copy of csrc with everything but interpose.c compiled."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.csrc = directory / "csrc"
        self.library = directory / "libnodemgr.so"
        shutil.copytree(CSRC, self.csrc, ignore=shutil.ignore_patterns("sim", "__pycache__"))
        self.table = (self.csrc / "hooks" / "hooks.def").read_text()
        sources = build.sources_of("libnodemgr.so", self.csrc)
        units = {unit.source: unit for unit in build.units(self.csrc) if unit.source in sources}
        self.interpose = units.pop(self.csrc / "hooks" / "interpose.c")
        self.objects = toolchain.compile_all([*units.values()], directory).values()
        interpose = self.interpose.source
        interpose.write_text(mutant_of(interpose.read_text()))

    def take_out(self, name: str) -> None:
        table, count = re.subn(rf"NM_HOOK\((\w+), {name},", rf"NM_HIDDEN(\1, {name},", self.table)
        assert count == 1, name
        (self.csrc / "hooks" / "hooks.def").write_text(
            "#ifndef NM_HIDDEN\n#define NM_HIDDEN NM_HOOK\n#endif\n" + table
        )
        interpose = toolchain.compile_all([self.interpose], self.directory, "-O0", "-w").values()
        toolchain.link([*self.objects, *interpose, *build.SHIM_LDFLAGS], self.library)

    def failing(self, tests: list[str]) -> set[str]:
        """The checks that notice."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout=30",
            "--tb=no",
            "-rfE",
            *tests,
        ]
        environment = os.environ | {"NODEMGR_TEST_SHIM": str(self.library)}
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode in (0, 1), ran.stdout + ran.stderr
        return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, flags=re.MULTILINE))


def checks() -> dict[str, list[str]]:
    """The tests of each row, by name."""
    from tests.shim.hooks.test_every_hook import SCENARIOS

    found: dict[str, list[str]] = {name: [] for name in hooks()}
    for scenario, entry in SCENARIOS.items():
        for row in entry.rows:
            found[row] += [
                f"tests/shim/hooks/test_every_hook.py::test_by_route[{scenario}-{route}]"
                for route in ROUTES
            ]
    for row, test in OTHERS.items():
        found[row] += [f"{test}[{route}]" for route in ROUTES]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/shim/test_sight.py"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for test in re.findall(r"^\S+::test_row\[\S+\]$", collected, flags=re.MULTILINE):
        for name in set(re.findall(r"nvml\w+", test)):
            found[name].append(test)
    return found


def survivors(workshop: Workshop, name: str, tests: list[str]) -> Iterable[str]:
    """The routes by which no check notices that the row is missing."""
    workshop.take_out(name)
    noticed = workshop.failing(tests)
    for route in ROUTES:
        of_route = {test for test in tests if route in re.split(r"[-\[\]]", test)}
        if of_route and not of_route & noticed:
            yield route


def main(names: list[str]) -> int:
    found, missed = checks(), 0
    with tempfile.TemporaryDirectory(prefix="nm") as directory:
        workshop = Workshop(Path(directory))
        for name in names or list(hooks()):
            routes = list(survivors(workshop, name, found[name]))
            missed += bool(routes)
            print(
                f"{'missed by ' + ', '.join(routes) if routes else 'noticed'}\t{name}", flush=True
            )
    print(f"{missed} rows survive being taken out")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
