"""A job's process: its surroundings, its end, and no remains."""

from __future__ import annotations

import os
import pwd
import resource
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nodemgr.core.model.entities import Cause
from nodemgr.edge.executor.attempt_directory import RECORD_LINE_BYTES, AttemptFiles
from nodemgr.edge.executor.interface import Status
from nodemgr.edge.executor.launcher import PROGRAM
from nodemgr.edge.kernel.processes import boot_id
from tests.supervisor.world import World, all_gone, python
from tests.support.limits import WAIT_LIMIT_S
from tests.support.processes import is_stopped

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
AWAY = python(
    "import os, signal, sys, time\nfor number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):"
    " signal.signal(number, signal.SIG_IGN)\nif os.fork() == 0:\n    os.setsid()\n    if os.fork()"
    " == 0:\n        os.environ.clear()\n        print(os.getpid(), flush=True)\n       "
    " time.sleep(600)\n    os._exit(0)\nos.wait()\nif sys.argv[1:] == ['stay']: time.sleep(600)\n"
)
"""A daemon as daemons are made, which hears nothing; its maker ends, or stays."""


# -- how it ends --


def test_its_exit_code_and_what_it_wrote_are_kept(world: World) -> None:
    end = world.run("sh", "-c", "echo out; echo err >&2; exit 41")
    assert (end.state, end.exit_code, end.signal, end.why, end.cause) == (
        "ended",
        41,
        None,
        "",
        Cause.OWN,
    )
    assert world.heard.tails["j1", 1] == "out\nerr\n"
    assert (end.pid, end.started_wall_ns is not None) == (world.heard.begun["j1", 1], True)
    with open(world.factory.logs("j1")) as log:
        assert log.read() == "out\nerr\n"


def test_the_signal_that_ended_it_is_kept(world: World) -> None:
    end = world.run("sh", "-c", "kill -SEGV $$")
    assert (end.exit_code, end.signal, end.why) == (None, signal.SIGSEGV, "")


def test_what_it_leaves_running_ends_with_it(world: World) -> None:
    world.factory.create(
        world.order("sh", "-c", "sleep 600 & echo $!; setsid sleep 600 & echo $!; exit 7")
    )
    assert world.end().exit_code == 7
    assert all_gone(map(int, world.said(2)))


def test_a_daemon_that_hears_nothing_ends_with_it(make_world: Callable[..., World]) -> None:
    world = make_world(grace_ms=100)
    assert world.run(*AWAY).exit_code == 0
    assert all_gone(map(int, world.said()))


def test_who_does_not_end_when_asked_is_ended(make_world: Callable[..., World]) -> None:
    world = make_world(grace_ms=200)
    world.factory.create(world.order(*AWAY, "stay"))
    (daemon,) = world.said()
    main = world.begun()
    world.factory.withdraw("j1", 1, "alice withdrew it")
    end = world.end()
    assert (end.exit_code, end.signal, end.why, end.cause) == (
        None,
        signal.SIGKILL,
        "alice withdrew it",
        Cause.OWN,
    )
    assert all_gone([main, int(daemon)])


ASKED = python(
    "import os, signal, sys, time\n"
    "name = 'main'\n"
    "def asked(*_):\n"
    "    print(name, 'asked', flush=True)\n"
    "    if name == 'worker': os._exit(0)\n"
    "    if sys.argv[1] == 'saves':\n"
    "        time.sleep(0.5)\n"
    "        os.kill(worker, signal.SIGKILL)\n"
    "        print('saved', flush=True)\n"
    "        os._exit(5)\n"
    "signal.signal(signal.SIGTERM, asked)\n"
    "worker = os.fork()\n"
    "if not worker:\n"
    "    name = 'worker'\n"
    "    print('ready', flush=True)\n"
    "if worker and sys.argv[1] == 'waits':\n"
    "    os.wait()\n"
    "    os._exit(6)\n"
    "while True: time.sleep(600)\n"
)
"""(dash loses a trapped signal that comes while it forks.)"""


def asked(world: World, what: str) -> tuple[int | None, list[str]]:
    world.factory.create(world.order(*ASKED, what))
    world.said()
    world.factory.withdraw("j1", 1, "")
    return world.end().exit_code, world.heard.tails["j1", 1].split("\n")[1:-1]


def test_who_is_asked_may_save_something_first(world: World) -> None:
    """The first process alone is asked: its workers work on until it is done."""
    assert asked(world, "saves") == (5, ["main asked", "saved"])


def test_who_does_not_end_is_asked_once_and_his_children_are_asked_too(
    make_world: Callable[..., World],
) -> None:
    """The children after half of the grace; then the parent ends.

    The other half is the children's to be slow in.
    """
    assert asked(make_world(grace_ms=6_000), "waits") == (6, ["main asked", "worker asked"])


def test_who_is_stopped_hears_it_too(world: World) -> None:
    world.factory.create(world.order("sh", "-c", "echo ready; kill -STOP $$; exit 9"))
    world.said()
    world.until(lambda: is_stopped(world.begun()))
    world.factory.withdraw("j1", 1, "enough")
    assert world.end().signal == signal.SIGTERM


def test_its_time_is_limited(world: World) -> None:
    # it executes its program before that, or is killed
    end = world.run("sleep", "600", time_limit_ms=1_500)
    assert (end.signal, end.why, end.cause) == (signal.SIGTERM, "time limit", Cause.TIME_LIMIT)


def test_its_limit_can_be_moved(world: World) -> None:
    world.factory.create(world.order("sleep", "600", time_limit_ms=10**9))
    world.begun()
    world.set_limit(None)
    world.set_limit(10)
    assert world.end().why == "time limit"
    assert world.run("sleep", "0.3", job="j2", time_limit_ms=None).exit_code == 0


def test_only_clocks_that_nobody_sets_decide(world: World) -> None:
    """The wall clock is read for the record alone: nothing that decides is named with it."""
    csrc = Path(__file__).parents[2] / "csrc"
    sources = {
        path.name: path.read_text()
        for room in ("jobs", "supervisor")
        for path in (csrc / room).glob("*.c")
    }
    assert "supervise.c" in sources
    for name, text in sources.items():
        reads = [
            line
            for line in text.splitlines()
            if "CLOCK_REALTIME" in line or "wall_ns()" in line or "gettimeofday" in line
        ]
        assert all(name == "supervise.c" for _ in reads)
        assert all(
            "snprintf(text" in line or line.startswith("/* CLOCK_REALTIME for people")
            for line in reads
        ), reads
        assert not [
            word for word in ("gettimeofday", " time(", "alarm(", "setitimer") if word in text
        ]


# -- what cannot be begun --


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("no-such-program", "no-such-program: not found"),
        ("/no/such/program", "/no/such/program: not found"),
        ("", ": not found"),
        ("/etc/passwd", "/etc/passwd: not executable"),
        ("/usr", "/usr: not executable"),
    ],
)
def test_a_command_that_cannot_be_is_hopeless(world: World, program: str, why: str) -> None:
    assert world.run(program) == Status("ended", why=why, cause=Cause.CANNOT_RUN)
    assert not world.heard.begun


def test_a_script_is_executed_as_shells_do(world: World) -> None:
    script, lost = world.directory / "script", world.directory / "lost"
    script.write_text("echo by the shell $1\n")
    lost.write_text("#!/no/such/interpreter\n")
    for path in (script, lost):
        path.chmod(0o755)
    assert world.run(str(script), "really").exit_code == 0
    assert world.heard.tails["j1", 1] == "by the shell really\n"
    assert world.run(str(lost), job="j2").why == f"{lost}: its interpreter is not found"
    assert (
        world.run("script", job="j3", environ=(f"PATH=/nowhere:{world.directory}",)).exit_code == 0
    )


def test_a_directory_that_is_gone_is_hopeless(world: World) -> None:
    end = world.run("true", cwd="/no/such/directory")
    assert (end.exit_code, end.cause) == (None, Cause.CANNOT_RUN)
    assert end.why == "its directory /no/such/directory: No such file or directory"


@root_only
def test_a_user_who_is_gone_is_hopeless(world: World) -> None:
    end = world.run("true", user="nobody-of-that-name", uid=54321)
    why = "user nobody-of-that-name (uid 54321) is not on this node any more"
    assert (end.exit_code, end.why, end.cause) == (None, why, Cause.CANNOT_RUN)
    # the name belongs to another user
    assert world.run("true", job="j2", user="nobody", uid=54321).cause is Cause.CANNOT_RUN


def test_what_no_program_can_be_given_is_hopeless(world: World) -> None:
    assert world.run("echo", "a\0b").cause is Cause.CANNOT_RUN
    assert (
        world.run(
            "true", job="j2", environ=tuple(f"V{n}={'x' * 100_000}" for n in range(100))
        ).cause
        is Cause.CANNOT_RUN
    )


# -- what it is given --

SHOW = (
    "sh", "-c",
    "echo ids $(id -u) $(id -ru) $(id -g) $(id -rg) $(id -G);"
    " echo open $(ls /proc/self/fd) $(readlink /proc/$$/fd/0);"

        " echo leads $(cut -d' ' -f5,6 /proc/$$/stat) $(umask) $(pwd); echo me $$ $$; echo "
        "limits $(ulimit -Sn) $(ulimit -Hn);"

    " env -0 | tr '\\n\\0' '|,'; echo; echo reopened >>/dev/stderr",
)  # fmt: skip


def shown(world: World, job: str = "j1", **said: object) -> list[str]:
    assert world.run(*SHOW, job=job, **said).exit_code == 0, world.heard.tails
    return [" ".join(line.split()) for line in world.heard.tails[job, 1].splitlines()]


def test_a_plain_process_and_nothing_of_ours(world: World) -> None:
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)  # as a descriptor that a caller forgot
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        world.again()
        assert (
            world.run("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status", job="j2").exit_code == 0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR1, before)
        os.close(extra)
    assert world.heard.tails["j2", 1].split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
    ids, fds, leads, me, limits, variables, last = shown(
        world, cwd="/usr", environ=("PATH=/bin", "B=2\n3", "A=")
    )
    uid, gid = os.getuid(), os.getgid()
    assert ids.split()[:5] == f"ids {uid} {uid} {gid} {gid}".split()
    assert fds == "open 0 1 2 3 /dev/null"  # 3: what ls lists
    assert leads == f"leads {me.removeprefix('me ')} 0022 /usr"
    assert limits.split()[1:] == [
        str(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    ]
    assert sorted(variables.split(",")) == ["", "A=", "B=2|3", "PATH=/bin", "PWD=/usr"]
    assert last == "reopened"


def test_who_is_spared_when_memory_runs_out_is_not_the_job(world: World) -> None:
    """A service's launcher is; and so is its supervisor."""
    score = Path("/proc/self/oom_score_adj")
    before = score.read_text()
    try:
        score.write_text("-300")
        world.again()
    except PermissionError:
        pytest.skip("needs the right to lower it (CAP_SYS_RESOURCE)")
    finally:
        score.write_text(before)
    world.factory.create(world.order("sh", "-c", "cat /proc/self/oom_score_adj; sleep 600"))
    assert world.said() == ["0"]
    assert Path(f"/proc/{world.supervisor()}/oom_score_adj").read_text() == "-300\n"


@root_only
def test_it_runs_as_its_user_with_his_groups(world: World) -> None:
    nobody = pwd.getpwnam("nobody")
    uid, gid = nobody.pw_uid, nobody.pw_gid
    lines = shown(world, user="nobody", uid=uid, gid=gid)
    assert (
        lines[0]
        == f"ids {uid} {uid} {gid} {gid} {' '.join(map(str, os.getgrouplist('nobody', gid)))}"
    )
    assert lines[-1] == "reopened"  # the pipe is the user's
    status = world.file("log").stat()
    # the log is not
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
        0,
        0,
        0o600,
    )
    assert world.file("record").stat().st_uid == 0
    order = world.file("order", "j2")
    world.factory.create(
        world.order(
            "sh",
            "-c",
            f"cat {order} || echo closed; sleep 600",
            job="j2",
            user="nobody",
            uid=uid,
            gid=gid,
        )
    )
    assert world.said(2, "j2")[1] == "closed"
    assert (order.stat().st_uid, stat.S_IMODE(order.stat().st_mode)) == (0, 0o600)
    world.factory.withdraw("j2", 1, "seen")
    world.end("j2")
    assert not order.exists()  # nor is its environment kept


@root_only
def test_nobody_has_the_groups_of_who_started_the_manager(world: World) -> None:
    before = os.getgroups()
    os.setgroups([*before, 54323])
    try:
        world.again()
    finally:
        os.setgroups(before)
    for number, user in enumerate(("nobody", "54321")):
        uid = pwd.getpwnam("nobody").pw_uid if user == "nobody" else 54321
        assert world.run("id", "-G", job=f"j{number}", user=user, uid=uid, gid=54322).exit_code == 0
        assert world.heard.tails[f"j{number}", 1].split() == ["54322"]


@root_only
def test_a_user_without_a_name_runs_too(world: World) -> None:
    assert (
        shown(world, user="54321", uid=54321, gid=54322)[0] == "ids 54321 54321 54322 54322 54322"
    )


# -- files that are not as they should be --


def supervised(directory: Path) -> int:
    return subprocess.run(
        [PROGRAM, "supervise", directory], check=False, timeout=WAIT_LIMIT_S
    ).returncode


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: b"", "it is not an order"),
        (lambda text: os.urandom(400), "it is not an order"),
        (lambda text: text[:-4], "it is cut off"),
        (lambda text: text[:40], "it is cut off"),
        (lambda text: text[:-1], "it is cut off"),
        (lambda text: text + b"arg=more\0", "it is cut off"),
        (lambda text: text.replace(b"uid=", b"uid=-"), "it has an invalid value"),
        (lambda text: text.replace(b"uid=", b"uid=9999999999"), "it has an invalid value"),
        (lambda text: text.replace(b"log_bytes=", b"log_bytes=-"), "it has an invalid value"),
        (lambda text: text.replace(b"umask=", b"umask=9"), "it has an invalid value"),
        (lambda text: text.replace(b"uid=", b"uix="), "it has no program to run"),
        (lambda text: text.replace(b"arg=", b"org="), "it has no program to run"),
        (lambda text: text.replace(b"cwd=", b"cwd"), "it has an invalid value"),
    ],
)
def test_an_order_that_is_damaged_runs_nothing(
    world: World, damage: Callable[[bytes], bytes], why: str
) -> None:
    files = AttemptFiles(world.jobs_dir, "j1", 1)
    files.write(world.order("touch", str(world.directory / "ran")), 1_000, boot_id())
    path = files.directory / "order"
    path.write_bytes(damage(path.read_bytes()))
    assert supervised(files.directory) == 0
    end = files.record()[1]
    assert end is not None
    assert (end.exit_code, end.cause, end.why) == (
        None,
        Cause.NOT_STARTED,
        f"its order cannot be read: {why}",
    )
    assert not (world.directory / "ran").exists()


@pytest.mark.parametrize(
    "wrong", ["written by others", "a link", "a pipe", pytest.param("another's", marks=root_only)]
)
def test_an_order_that_others_could_write_runs_nothing(world: World, wrong: str) -> None:
    files = AttemptFiles(world.jobs_dir, "j1", 1)
    files.write(world.order("touch", str(world.directory / "ran")), 1_000, boot_id())
    path = files.directory / "order"
    if wrong == "another's":
        os.chown(path, 65534, 65534)
    elif wrong == "written by others":
        path.chmod(0o620)
    else:
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere") if wrong == "a link" else os.mkfifo(path)
    assert supervised(files.directory) == 0
    end = files.record()[1]
    assert end is not None
    assert end.why.startswith("its order cannot be read: ")
    assert not (world.directory / "ran").exists()


BEGUN = "started 5 6 7 8"


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        (BEGUN, "ended 9 0 - 0", (True, (9, 0, None, ""))),
        (BEGUN, f"ended {2**63} 0 - 0", (True, None)),
        (BEGUN, f"ended {'9' * 400} 0 - 0", (True, None)),
        (BEGUN, "ended \u00b2 0 - 0", (True, None)),
        (BEGUN, "ended 9 256 65 0", (True, (9, None, None, ""))),
        (BEGUN, "ended 9 -1 \u0663 0 \x1b[31mred\u202e", (True, (9, None, None, "?[31mred?"))),
        ("started 5 6 7 \u00b2", "ended", (False, None)),
        (f"started {2**63} 6 7 8", "", (False, None)),
        ("started 5 6 7", "began 9 0 - 0", (False, None)),
    ],
)
def test_what_a_strangers_supervisor_writes_is_read_strictly(
    world: World, first: str, second: str, known: object
) -> None:
    """The record of an attempt in a container belongs to the container's user."""
    files = AttemptFiles(world.jobs_dir, "j1", 1)
    files.write(world.order("true"), 1_000, boot_id())
    lines = [line.encode().ljust(RECORD_LINE_BYTES - 2) + b".\n" for line in (first, second)]
    (files.directory / "record").write_bytes(b"".join(lines))
    began, end = files.record()
    assert (
        began is not None,
        None if end is None else (end.wall_ns, end.exit_code, end.signal, end.why),
    ) == known


def test_what_somebody_has_claimed_is_begun_by_nobody_else(world: World) -> None:
    files = AttemptFiles(world.jobs_dir, "j1", 1)
    files.write(world.order("touch", str(world.directory / "ran")), 1_000, boot_id())
    assert files.give_up()
    assert not files.give_up()
    assert supervised(files.directory) == 3
    assert files.record() == (None, None)
    assert not (world.directory / "ran").exists()


@root_only
def test_a_full_disk_loses_no_end(world: World) -> None:
    """A file system of one MiB, filled by the job itself."""
    mounted = world.directory / "small"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", mounted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
    try:
        files = AttemptFiles(mounted, "j1", 1)
        files.write(
            world.order(
                "sh", "-c", f"cat /dev/zero > {mounted}/full; test -s {mounted}/full && exit 6"
            ),
            1_000,
            boot_id(),
        )
        assert supervised(files.directory) == 0
        assert os.statvfs(mounted).f_bavail == 0
        end = files.record()[1]
        assert end is not None
        assert end.exit_code == 6
        with pytest.raises(OSError, match="No space left"):
            AttemptFiles(mounted, "j2", 1).write(world.order("true"), 1_000, boot_id())
        assert not list(mounted.glob("j2/*"))
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_many_at_once(world: World) -> None:
    names = [f"j{number}" for number in range(200)]
    for name in names:
        world.factory.create(world.order("sh", "-c", "exit 3", job=name))
    world.until(lambda: len(world.heard.ends) == len(names))
    assert {world.end(name).exit_code for name in names} == {3}
    assert len(world.heard.begun) == 200, "each has begun"
    zombies = [child.name() for child in psutil.Process().children()]
    assert not [name for name in zombies if name.startswith("nodemgr")]
