"""A job writes to a pipe, and its log never takes more room than allowed.

Neither while the job runs nor afterwards.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr.edge.executor.attempt_directory import AttemptFiles
from nodemgr.edge.executor.launcher import PROGRAM
from nodemgr.edge.kernel.processes import boot_id
from tests.supervisor.world import World, python
from tests.support.limits import WAIT_LIMIT_S

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
    code = (
        f"{LINES}write(0, 400_000)\nwhile not os.path.exists({str(go)!r}):"
        " time.sleep(0.01)\nwrite(400_000, 5)\ntime.sleep(600)\n"
    )
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
    assert world.factory.room_bytes("j1") == sum(map(room, log.parent.iterdir()))
    assert log.stat().st_size == 4_000_000
    assert world.heard.tails["j1", 1].endswith("000399998\n000399999\n")


def test_a_log_without_a_bound_keeps_all(world: World) -> None:
    assert world.run(*python(f"{LINES}write(0, 400_000)")).exit_code == 0
    assert line(world.file("log"), 200_000) == b"000200000\n"


# -- the job never has the file --

GRASP = (
    "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef tried(done):"
    " print(errno.errorcode[ctypes.get_errno()] if done < 0 else 'done',"
    " flush=True)\ntried(libc.fallocate(1, 1, ctypes.c_int64(0), ctypes.c_int64(1 <<"
    " 33)))\ntried(libc.ftruncate(1, ctypes.c_int64(1 <<"
    " 33)))\nprint(os.readlink('/proc/self/fd/1').partition(':')[0], flush=True)\n"
)
"""Blocks behind the end (FALLOC_FL_KEEP_SIZE), a length, and the kind of file."""


def test_a_job_can_reserve_no_blocks_in_its_log(world: World) -> None:
    assert world.run(*python(GRASP)).exit_code == 0
    assert world.heard.tails["j1", 1].splitlines() == ["ESPIPE", "EINVAL", "pipe"]
    assert room(world.file("log")) <= 65536


KEEPERS_FILE = (
    "import os, pathlib\ndef is_keeper(stat):\n    try: name, _, rest ="
    " stat.read_text().rpartition(')')\n    except OSError: return False\n    return"
    " name.endswith('(nodemgr-log') and int(rest.split()[1]) == os.getppid()\nkeepers = []\nwhile"
    " not keepers: keepers = [stat.parent for stat in pathlib.Path('/proc').glob('[0-9]*/stat') if"
    " is_keeper(stat)]\ntry: print(os.readlink(keepers[0] / 'fd/1'))\nexcept OSError as error:"
    " print(error.strerror)\n"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as another user")
def test_a_job_of_the_keepers_own_user_cannot_reach_the_log_through_it(world: World) -> None:
    """As in a container, where the supervisor is not root."""
    uid = pwd.getpwnam("nobody").pw_uid
    place = world.directory / "of_nobody"
    place.mkdir()
    code = ("/usr/bin/python3", "-I", "-S", "-c", KEEPERS_FILE)
    files = AttemptFiles(place, "j1", 1)
    files.write(world.order(*code, user="nobody", uid=uid, gid=uid), 1_000, boot_id())
    for path in (place, *place.rglob("*")):
        os.chown(path, uid, uid)
    # the checkout's parents may be closed to others
    program = Path(shutil.copy(PROGRAM, place))
    subprocess.run(
        [program, "supervise", files.directory],
        check=True,
        timeout=WAIT_LIMIT_S,
        user=uid,
        group=uid,
        extra_groups=(),
    )
    assert (files.directory / "log").read_text() == "Permission denied\n"


HANDED_OUT = (
    "import array, os, socket, sys, time\n"
    "with socket.socket(socket.AF_UNIX) as outside:\n"
    "    outside.connect(sys.argv[1])\n"
    "    outside.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1]))])\n"
    "    outside.recv(1)\n"
    "print('end')\n"
)


def test_a_process_outside_of_the_job_neither_keeps_the_end_waiting_nor_writes_after_it(
    world: World,
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.directory / "outside"))
        listener.listen()
        world.factory.create(world.order(*python(HANDED_OUT), str(world.directory / "outside")))
        job, _ = listener.accept()
        with job:
            _, (output,), _, _ = socket.recv_fds(job, 1, 1)
            os.write(output, b"from outside\n")
    assert world.end().exit_code == 0
    assert world.heard.tails["j1", 1] == "from outside\nend\n"
    with pytest.raises(BrokenPipeError):
        os.write(output, b"late\n")
    os.close(output)
    assert world.file("log").read_text() == "from outside\nend\n"


def test_both_streams_keep_their_order_and_can_be_opened_again(world: World) -> None:
    script = (
        "for n in 1 2 3; do echo out $n; echo err $n >&2; echo again $n > /dev/stdout; echo both $n"
        " | tee /dev/stderr; done"
    )
    assert world.run("sh", "-c", script).exit_code == 0
    expected = [
        f"{word} {n}" for n in (1, 2, 3) for word in ("out", "err", "again", "both", "both")
    ]
    assert world.file("log").read_text().splitlines() == expected


def test_a_job_that_closes_its_output_goes_on(world: World) -> None:
    assert world.run("sh", "-c", "echo said; exec >&- 2>&-; sleep 0.1; exit 4").exit_code == 4
    assert world.file("log").read_text() == "said\n"


STUCK = (
    "import ctypes, fcntl, mmap, os, struct, sys, time\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "faults = libc.syscall(int(sys.argv[1]), os.O_CLOEXEC)\n"
    "if faults < 0: os.symlink('no userfaultfd', sys.argv[2]); sys.exit()\n"
    "fcntl.ioctl(faults, 0xc018aa3f, struct.pack('QQQ', 0xaa, 0, 0))\n"
    "memory = mmap.mmap(-1, 4096)\n"
    "address = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
    "fcntl.ioctl(faults, 0xc020aa00, struct.pack('QQQQ', address, 4096, 1, 0))\n"
    "os.symlink('stuck', sys.argv[2])\n"
    "libc.write(1, ctypes.c_void_p(address), ctypes.c_size_t(4096))\n"
)
"""Its write never ends, since the page to write never comes.

The kernel holds the pipe's mutex meanwhile.
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have the kernel's own faults served")
def test_a_write_that_never_ends_keeps_no_job_from_being_ended(world: World) -> None:
    number = {"x86_64": "323", "aarch64": "282"}[platform.machine()]
    said = world.directory / "said"  # in the log it might stand behind the write that never ends
    world.factory.create(world.order(*python(STUCK), number, str(said)))
    world.until(said.is_symlink)
    if os.readlink(said) != "stuck":
        pytest.skip("this kernel has no userfaultfd")
    pid = world.begun()
    # it is within write(2)
    world.until(lambda: Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("1", "64"))
    world.factory.withdraw("j1", 1, "seen")
    assert (world.end().signal, world.end().why) == (signal.SIGTERM, "seen")


# -- a disk that does not take it --


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """A disk of 4 MiB."""
    mounted = world.directory / "small"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mounted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_drops_output_and_says_how_much(world: World, small_disk: Path) -> None:
    """The job goes on, and what it writes when there is room again is kept."""
    ballast = small_disk / "ballast"
    code = (
        f"import os\n{LINES}write(0, 1_000_000)\nos.unlink({str(ballast)!r})\nwrite(1_000_000,"
        " 10_000)"
    )
    files = AttemptFiles(small_disk, "j1", 1)
    files.write(world.order(*python(code)), 1_000, boot_id())
    ballast.write_bytes(bytes(2 * MIB))
    assert (
        subprocess.run(
            [PROGRAM, "supervise", files.directory], check=False, timeout=WAIT_LIMIT_S
        ).returncode
        == 0
    )
    began, ended = files.record()
    assert began is not None
    assert ended is not None
    assert ended.exit_code == 0
    text = (files.directory / "log").read_bytes()
    before, note, after = text.partition(b"\nnodemgr: ")
    lost, said = note + after[: after.index(b"\n") + 1], after[: after.index(b"\n")].decode()
    assert "bytes of output were dropped here: No space left on device; " in said
    assert len(text) - len(lost) + int(said.split()[0]) == 10_100_000, (
        "each byte is kept or counted"
    )
    assert before.startswith(b"000000000\n000000001\n")
    assert text.endswith(b"001009999\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system without holes")
def test_a_file_system_without_holes_drops_all_and_says_so(world: World) -> None:
    mounted = world.directory / "plain"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "ramfs", "ramfs", mounted], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no ramfs can be mounted: {done.stderr.strip()}")
    try:
        files = AttemptFiles(mounted, "j1", 1)
        files.write(world.order(*python(f"{LINES}write(0, 400_000)")), 1_000, boot_id(), MIB)
        assert (
            subprocess.run(
                [PROGRAM, "supervise", files.directory], check=False, timeout=WAIT_LIMIT_S
            ).returncode
            == 0
        )
        said, *rest = (files.directory / "log").read_text().splitlines()
        assert said.startswith(
            "nodemgr: the output so far was dropped: it passed the 1048576 bytes of job_log_bytes"
        )
        assert rest[-1] == "000399999"
        assert len(rest) <= MIB / 10
    finally:
        subprocess.run(["umount", mounted], check=True)
