"""What a job writes takes no more room than it may: the middle goes, the beginning and the end stay where they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.edge.attempt_files import AttemptFiles
from nodemgr.edge.launcher import PROGRAM
from nodemgr.edge.processes import boot_id
from tests.supervisor.world import World, python

MIB = 2**20
LINES = (
    "import os, sys, time\n"
    "def write(first, count):\n"
    "    text = ''.join(f'{number:09}\\n' for number in range(first, first + count)).encode()\n"
    "    while text: text = text[os.write(1, text):]\n"
)
"""Ten bytes each."""


def room(path: Path) -> int:
    return path.stat().st_blocks * 512


def line(path: Path, number: int) -> bytes:
    with path.open("rb") as file:
        file.seek(10 * number)
        return file.read(10)


def test_the_middle_goes_while_it_runs(make_world: Callable[..., World]) -> None:
    world = make_world(log_bytes=MIB)
    go = world.directory / "go"
    code = f"{LINES}write(0, 400_000)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nwrite(400_000, 5)\ntime.sleep(600)\n"
    world.factory.create(world.order(*python(code)))
    log = world.file("log")
    world.until(lambda: log.exists() and log.stat().st_size == 4_000_000 and room(log) <= MIB)
    assert line(log, 0) == b"000000000\n"
    assert line(log, 10_000) == b"000010000\n", "of the beginning an eighth stays"
    assert line(log, 200_000) == bytes(10)
    assert line(log, 350_000) == b"000350000\n", "of the end a half"
    go.touch()
    world.until(lambda: log.stat().st_size == 4_000_050)
    assert line(log, 400_004) == b"000400004\n", "and what comes then stands behind it"


def test_who_ends_at_once_leaves_no_more(make_world: Callable[..., World]) -> None:
    world = make_world(log_bytes=MIB)
    assert world.run(*python(f"{LINES}write(0, 400_000)")).exit_code == 0
    log = world.file("log")
    assert room(log) <= MIB
    assert world.factory.room_bytes("j1") == room(log)
    assert log.stat().st_size == 4_000_000
    assert world.heard.tails["j1", 1].endswith("000399998\n000399999\n")


def test_what_is_long_and_takes_no_room_stays(make_world: Callable[..., World]) -> None:
    """The log is the user's, who can make it any length; and one that may be any size is left alone."""
    world = make_world(log_bytes=MIB)
    assert world.run(*python(f"import os\n{LINES}write(0, 50_000)\nos.truncate(1, 1 << 40)\nwrite(0, 1)")).exit_code == 0
    log = world.file("log")
    assert log.stat().st_size == 2**40 + 10
    assert [line(log, number) for number in (0, 49_999)] == [b"000000000\n", b"000049999\n"]
    unbounded = make_world()
    assert unbounded.run(*python(f"{LINES}write(0, 400_000)")).exit_code == 0
    assert line(unbounded.file("log"), 200_000) == b"000200000\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system without holes")
def test_a_file_system_without_holes_drops_all_and_says_so(world: World) -> None:
    mounted = world.directory / "plain"
    mounted.mkdir()
    done = subprocess.run(["mount", "-t", "ramfs", "ramfs", mounted], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no ramfs can be mounted: {done.stderr.strip()}")
    try:
        files = AttemptFiles(mounted, "j1", 1)
        files.write(world.order(*python(f"{LINES}write(0, 400_000)")), 1_000, boot_id(), MIB)
        assert subprocess.run([PROGRAM, "supervise", files.directory], check=False, timeout=60).returncode == 0
        (said,) = (files.directory / "log").read_text().splitlines()
        assert said.startswith("nodemgr: the output so far was dropped: it passed the 1048576 bytes of job_log_bytes")
    finally:
        subprocess.run(["umount", mounted], check=True)
