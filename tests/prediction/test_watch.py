"""A watched command: a private disk and network, no process and no file left behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.prediction import confinement, isolation, outcome
from client_plugin.prediction.watch import Watched, WatchOrder, last_line, watch
from tests.session import DISK
from tests.support import ordinary
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.ordinary import CHECKOUT

PR_SET_DUMPABLE = 4
USER = 4711
"""A user without a name."""
MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:30 / /home/a\040b rw - ext4 /dev/vdb rw
"""


def test_mount_points_have_blanks() -> None:
    assert confinement.mount_points(MOUNTS) == ["/", "/proc", "/home/a b"]


def run(code: str, *, confined: bool = True, limit_s: float = WAIT_LIMIT_S) -> Watched:
    command = [sys.executable, "-S", "-c", textwrap.dedent(code)]
    return watch(WatchOrder(command, sys.executable, {"PATH": "/bin"}, limit_s, confined))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory. The directory for temporary files is empty before and after.

    Both are open to other users, which pytest's own are no more once another run of it starts.
    """
    with tempfile.TemporaryDirectory(prefix="nm", dir=DISK) as name:
        work, scratch = Path(name) / "work", Path(name) / "scratch"
        for path, mode in ((Path(name), 0o755), (work, 0o755), (scratch, 0o1777)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        monkeypatch.chdir(work)
        (work / "data").write_text("old")
        yield work
        os.chdir("/")
        assert list(scratch.iterdir()) == []


@pytest.fixture
def namespaces() -> None:
    """Skips where the machine allows no namespaces."""
    child = os.fork()
    if child == 0:
        try:
            confinement.unshare()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        pytest.skip("no namespaces here")


@pytest.mark.usefixtures("namespaces")
def test_writes_are_dropped_and_named(here: Path) -> None:
    seen = run("""
        import os
        open("data", "a").write(" new")
        os.mkdir("folder")
        open("folder/log", "w").write("x")
        assert open("data").read() == "old new"
        """)
    assert (seen.fault, seen.exit_status, seen.last_line) == ("", 0, "")
    assert seen.written == [str(here / "data"), str(here / "folder" / "log")]
    assert sorted(os.listdir(here)) == ["data"]
    assert (here / "data").read_text() == "old"


def run_as_user(
    script: str, before: Callable[[], None] = lambda: None, user: int = USER
) -> Watched:
    """A shell script as this user watches it; `before` runs as root, in mounts of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            libc = ctypes.CDLL(None)
            libc.unshare(confinement.CLONE_NEWNS)
            isolation.mount("none", "/", None, isolation.MS_REC | isolation.MS_PRIVATE)
            before()
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            libc.prctl(PR_SET_DUMPABLE, 1)  # as after the start of a program
            command = ["sh", "-c", script]
            order = WatchOrder(command, "/bin/sh", {"PATH": "/bin"}, WAIT_LIMIT_S, True)
            os.write(writing, json.dumps(watch(order)._asdict()).encode())
        finally:
            os._exit(0)  # whatever went wrong: the child is no second run of the tests
    os.close(writing)
    with os.fdopen(reading) as pipe:
        seen = Watched(**json.load(pipe))
    os.waitpid(child, 0)
    return seen


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
@pytest.mark.usefixtures("namespaces", "here")
def test_a_directory_that_takes_no_files_needs_no_overlay() -> None:
    os.chdir("/usr")
    seen = run_as_user("pwd; echo x >file || echo it stayed as it was")
    assert (seen.fault, seen.exit_status, seen.written) == ("", 0, [])
    assert "Read-only file system" in seen.last_line or "Permission denied" in seen.last_line


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
@pytest.mark.usefixtures("namespaces")
def test_what_is_mounted_below_a_user_s_directory_stays_in_view(here: Path) -> None:
    for name in ("own", "own/cache", "own/work"):
        (here / name).mkdir()
        os.chown(here / name, USER, USER)
    os.chdir(here / "own" / "work")

    def mount() -> None:
        isolation.mount("tmpfs", str(here / "own" / "cache"), "tmpfs", 0, f"uid={USER},mode=755")
        (here / "own" / "cache" / "data").write_text("old")
        os.chown(here / "own" / "cache" / "data", USER, USER)

    seen = run_as_user("grep -q old ../cache/data && echo new >../cache/data; echo x >log", mount)
    assert (seen.fault, seen.exit_status, seen.last_line) == ("", 0, "")
    own = here / "own"
    assert seen.written == [str(own / "cache" / "data"), str(own / "work" / "log")]
    assert list((own / "work").iterdir()) == []


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("is_root", [True, False])
def test_a_working_directory_may_have_mounts_below_it(here: Path, is_root: bool) -> None:
    """Data that are mounted into a project; in a user namespace its small files are copied."""
    if os.geteuid() != 0:
        pytest.skip("mounts, and becomes an ordinary user")
    own = here / "own"
    for name in (".", "data", "src"):
        (own / name).mkdir()
    for name in ("log", "conf", "src/a"):
        (own / name).write_text("old\n")
    (own / "large").write_bytes(bytes(confinement.MAX_COPIED_BYTES + 1))
    (own / "link").symlink_to("src/a")
    for path in (own, *own.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    os.chdir(own)

    def mount() -> None:
        isolation.mount("tmpfs", str(own / "data"), "tmpfs", 0, f"uid={USER},mode=755")
        (own / "data" / "f").write_text("mounted\n")
        isolation.mount(str(own / "src" / "a"), str(own / "conf"), None, isolation.MS_BIND)

    script = (
        "set -e; grep -q mounted data/f; grep -q old link; test -s large; cat conf >>new; "
        "echo x >>log; echo y >src/b; echo z >data/g; ls | wc -l"
    )
    seen = run_as_user(script, mount, 0 if is_root else USER)
    assert (seen.fault, seen.exit_status, seen.last_line) == ("", 0, "7")
    assert seen.written == [str(own / name) for name in ("data/g", "log", "new", "src/b")]
    assert (own / "log").read_text() == "old\n"
    assert sorted(os.listdir(own)) == ["conf", "data", "large", "link", "log", "src"]


@pytest.mark.usefixtures("namespaces")
def test_the_top_of_the_disk_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/` has no overlay: a look at a command is made there all the same."""
    monkeypatch.chdir("/")
    seen = run("open('nodemgr-never', 'w')")
    assert (seen.fault, seen.written) == ("", [])
    assert not os.path.exists("/nodemgr-never")


def test_directories_above_the_working_directory_are_covered_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "z/mounted"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(confinement, "MAX_OVERLAYS", 1)
    mounted = [str(tmp_path / "z" / "mounted")]
    for name in ("a", "b", "c"):
        found = confinement._covered(mounted, [str(tmp_path)], str(tmp_path / name))
        assert list(found) == [str(tmp_path / name)]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
@pytest.mark.usefixtures("namespaces")
def test_an_ordinary_user_has_the_same_view(here: Path) -> None:
    (here / "own").mkdir()
    os.chown(here / "own", USER, USER)
    os.chdir(here / "own")
    (here / "own" / "data").write_text("old")
    os.chown(here / "own" / "data", USER, USER)
    seen = run_as_user("echo new >data; echo x >log; mkdir f; echo y >f/z")
    own = here / "own"
    assert (seen.fault, seen.exit_status, seen.last_line) == ("", 0, "")
    assert seen.written == [str(own / "data"), str(own / "f" / "z"), str(own / "log")]
    assert sorted(os.listdir(own)) == ["data"]
    assert (own / "data").read_text() == "old"


def test_a_user_s_own_directories_are_the_highest_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    owners = {str(tmp_path / "home"): USER, str(tmp_path / "home" / "work"): USER}
    monkeypatch.setattr(confinement, "_owner", lambda path: owners.get(path, 0))
    (tmp_path / "home" / "work" / "run").mkdir(parents=True)
    found = confinement.own_roots(str(tmp_path / "home" / "work" / "run"), USER)
    assert found.index("/tmp") < found.index(str(tmp_path / "home"))
    assert str(tmp_path / "home" / "work") not in found


def test_the_root_of_a_container_owns_all_but_the_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user owns `/`, too, on which no overlay can stand."""
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr(confinement, "_owner", lambda _path: 0)
    found = confinement.own_roots(str(tmp_path), 0)
    assert all(os.path.dirname(path) == "/" and path != "/" for path in found)
    assert any(confinement._is_below(str(tmp_path), path) for path in found)


@pytest.mark.usefixtures("namespaces", "here")
def test_there_is_no_network_but_a_loopback() -> None:
    seen = run("""
        import socket
        print(sorted(name for _, name in socket.if_nameindex()))
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname()).close()
        print([name for _, name in socket.if_nameindex()], socket.gethostname())
        """)
    assert (seen.exit_status, seen.last_line) == (0, "['lo'] localhost"), "a name that it can find"


def reach_python() -> None:
    """An interpreter below root's home is in view of an ordinary user, too."""
    ordinary._make_reachable({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()})


HOSTILE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNS, MNT_DETACH = 0x10000000, 0x20000, 2

def connects(address):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)

def opens(path):
    os.close(os.open(path, os.O_WRONLY))

def unmounts(path):
    if libc.umount2(path.encode(), MNT_DETACH):
        raise OSError(ctypes.get_errno(), path)

def unmounts_with_rights(path):
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    unmounts(path)

def traces():
    opens("/proc/1/mem")

def sees(path):
    if not os.listdir(path):
        raise OSError(2, path)

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
got = [name for name in ("CapInh", "CapAmb") if int(status[name], 16)]
got += [name for name in ("CapPrm", "CapEff", "CapBnd") if int(status[name], 16) & ~2]
for attempt in {attempts}:
    try:
        eval(attempt)
        got.append(attempt)
    except OSError:
        pass
print(got, "NoNewPrivs", status["NoNewPrivs"].strip())
"""
"""Prints which of a list of attempts succeeded, and its rights but CAP_DAC_OVERRIDE."""


def disks() -> list[str]:
    return [str(path) for path in Path("/dev").iterdir() if path.is_block_device()]


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("is_root", [True, False])
def test_a_hostile_command_reaches_no_service_and_no_setting(here: Path, is_root: bool) -> None:
    """Bare, as root, it gets each of them: the test of the test."""
    if os.geteuid() != 0:
        pytest.skip("becomes an ordinary user")
    hidden, named = Path(f"/run/nodemgr-test-{os.getpid()}"), here / "own"
    named.mkdir()
    os.chown(named, USER, USER)
    hidden.mkdir()
    name = f"\0nodemgr-test-{os.getpid()}"
    places = [str(hidden / "socket"), str(named / "socket"), name]
    attempts = [f"connects({place!r})" for place in places]
    settings = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/dev/kmsg", *disks()]
    attempts += [f"opens({path!r})" for path in settings if os.path.exists(path)]
    attempts += [f"sees({str(hidden)!r})", "traces()"]
    last = ["unmounts('/tmp')", "unmounts('/dev')", "unmounts_with_rights('/dev')"]
    program = named / "hostile.py"
    program.write_text(HOSTILE.replace("{attempts}", repr([*attempts, *last])))
    os.chdir(named)
    try:
        with contextlib.ExitStack() as services:
            for place in places:
                service = services.enter_context(socket.socket(socket.AF_UNIX))
                service.bind(place)
                service.listen()
                if place != name:
                    os.chmod(place, 0o666)
            bare = subprocess.check_output(
                [sys.executable, "-c", HOSTILE.replace("{attempts}", repr(attempts))], text=True
            )
            certain = [*attempts[:4], f"sees({str(hidden)!r})"]
            assert all(repr(attempt) in bare for attempt in certain), bare
            script = f"exec {sys.executable} -S {program}"
            seen = run_as_user(script, reach_python, 0 if is_root else USER)
    finally:
        shutil.rmtree(hidden)
    assert (seen.fault, seen.exit_status) == ("", 0), seen
    assert seen.last_line == "[] NoNewPrivs 1"


BINDS_AGAIN = """
import os, socket, sys
from client_plugin.prediction import confinement
scratch, directory = sys.argv[1:]
confinement.unshare()
if os.fork():
    sys.exit(os.wait()[1])
confinement.confine(scratch, [], [f"{directory}/socket"], [])
print("confined", flush=True)
sys.stdin.readline()
for name in ("socket", "other"):
    with socket.socket(socket.AF_UNIX) as link:
        print(name, link.connect_ex(f"{directory}/{name}") == 0)
"""


@pytest.mark.usefixtures("namespaces")
def test_a_service_that_binds_its_socket_again_stays_hidden(tmp_path: Path) -> None:
    """On a part of the disk without an overlay; the service runs outside."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "service").mkdir()
    place = tmp_path / "service" / "socket"
    with contextlib.ExitStack() as services:

        def bind(path: Path) -> None:
            service = services.enter_context(socket.socket(socket.AF_UNIX))
            service.bind(str(path))
            service.listen()

        bind(place)
        program = subprocess.Popen(
            [sys.executable, "-c", BINDS_AGAIN, tmp_path / "scratch", place.parent],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "confined\n"
        place.unlink()
        bind(place)
        bind(place.with_name("other"))
        said, _ = program.communicate("go\n", timeout=WAIT_LIMIT_S)
    assert (program.returncode, said) == (0, "socket False\nother False\n")


@pytest.mark.usefixtures("namespaces", "here")
def test_a_command_has_the_devices_and_terminals_that_programs_expect() -> None:
    seen = run("""
        import os, multiprocessing.shared_memory as memory
        assert os.read(os.open("/dev/urandom", os.O_RDONLY), 4)
        open("/dev/null", "w").write("x")
        assert os.path.exists("/dev/fd/1") and os.path.exists("/dev/stdout")
        memory.SharedMemory("nodemgr-test", create=True, size=8).unlink()
        os.openpty()
        print(sorted(os.listdir("/dev")))
        """)
    assert seen.last_line == str(
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
         "urandom", "zero"]
    )  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("confined", [True, False])
def test_nothing_runs_on_after_the_limit(request: pytest.FixtureRequest, confined: bool) -> None:
    if confined:
        request.getfixturevalue("namespaces")
    reader, held = os.pipe()
    os.set_inheritable(held, True)
    limit_s, last = 1.0, ""
    while last != "waits":  # on a busy machine it may not have begun
        seen = run(
            """
            import os, time
            if os.fork() == 0:
                os.setsid()
            print("waits", flush=True)
            while True:
                time.sleep(60)
            """,
            confined=confined,
            limit_s=limit_s,
        )
        assert (seen.fault, seen.exit_status) == ("", None)
        assert seen.last_line in ("", "waits")
        limit_s, last = 2 * limit_s, seen.last_line
        assert limit_s < WAIT_LIMIT_S
    os.close(held)
    assert os.read(reader, 1) == b"", "no process holds the pipe"
    os.close(reader)


@pytest.mark.usefixtures("here")
def test_the_end_of_a_command_is_reported() -> None:
    seen = run("import sys; sys.exit('no such data')", confined=False)
    assert os.WEXITSTATUS(seen.exit_status or 0) == 1
    assert seen.last_line == "no such data"


@pytest.mark.usefixtures("here")
def test_stdin_is_empty() -> None:
    assert run("input('epochs? ')", confined=False).last_line == "EOFError: EOF when reading a line"


def test_a_refused_namespace_is_a_fault(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(confinement, "unshare", refused)
    seen = run("open('ran', 'w')")
    assert (seen.fault, seen.outcomes) == ("Operation not permitted", {})
    assert not (here / "ran").exists()


LAUNCHED = """
[rank1]: Traceback (most recent call last):
[rank1]: AssertionError: one rank is too many
E0000 00:00:1795428921.772979       2 cuda_platform.cc:52] failed call to cuInit
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.
=========
"""


def test_the_last_line_is_that_of_the_program_and_not_of_its_launcher() -> None:
    assert last_line([LAUNCHED, "step 1"]) == "AssertionError: one rank is too many"
    assert last_line(["\n", "step 1\nbad data\n---\n"]) == "bad data"
    assert last_line(["E0000 00:00:1.5 2 x.cc:52] no cuInit\n"]) == ""


@pytest.mark.usefixtures("here")
def test_of_a_long_output_the_end_is_kept() -> None:
    seen = run("print('x\\n' * 10_000_000); print('end')", confined=False)
    assert (seen.exit_status, seen.last_line) == (0, "end")


@pytest.mark.usefixtures("here")
def test_a_command_that_ends_its_keeper_leaves_no_process() -> None:
    reader, held = os.pipe()
    os.set_inheritable(held, True)
    seen = run(
        """
        import os, time
        os.kill(os.getppid(), 9)
        time.sleep(600)
        """,
        confined=False,
    )
    assert seen.fault == "its process was ended"
    os.close(held)
    assert os.read(reader, 1) == b"", "no process holds the pipe"
    os.close(reader)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("is_confined", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_killed_watch_leaves_no_process_and_no_file(
    here: Path, number: int, is_confined: bool, is_early: bool
) -> None:
    """`is_early`: before the first process of the namespaces is known to run."""
    reader, held = os.pipe()
    command = ["sleep", f"{WAIT_LIMIT_S:.0f}.{os.getpid()}"]
    order = WatchOrder(command, "/bin/sleep", {}, WAIT_LIMIT_S, is_confined)
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # ignored under nohup
        f"from client_plugin.prediction.watch import *; watch(WatchOrder(*{tuple(order)!r}))"
    )
    variables = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=[held], env=variables) as watching:
        os.close(held)
        if is_early:
            until(lambda: any(Path(tempfile.gettempdir()).iterdir()))
        else:
            until(lambda: "\0".join([*command, ""]) in map(command_line, processes()))
        watching.send_signal(number)
    assert watching.returncode == -number
    assert os.read(reader, 1) == b"", "no process holds the pipe"
    os.close(reader)


def test_a_full_or_missing_directory_for_temporary_files_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        run("pass")


def processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended
        return ""


FORGED = [b"{nonsense", b"[1]", b"{}", b'{"reason": 5, "is_certain": true}', b"\xff", b"[" * 99_999]


def test_other_children_of_the_watching_process_run_on() -> None:
    with subprocess.Popen(["sleep", str(WAIT_LIMIT_S)]) as other:
        run("import os; os.fork()", confined=False)
        assert other.poll() is None
        other.kill()


def test_a_file_that_is_no_outcome_is_left_out(tmp_path: Path) -> None:
    for at, text in enumerate(FORGED):
        (tmp_path / f"{at}.json").write_bytes(text)
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    sound = outcome.abstention("it does not train")
    outcome.write(str(tmp_path / "sound.json"), sound)
    assert outcome.read_all(str(tmp_path)) == {"sound.json": sound}
    assert outcome.read_all(str(tmp_path / "absent")) == {}


@pytest.mark.usefixtures("namespaces")
def test_the_environment_is_hidden(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "env").mkdir()
    (here / "env" / "client.conf").write_text("x")
    monkeypatch.setenv("NODEMGR_ENV_DIR", str(here / "env"))
    assert run("import os; print('sees', os.listdir('env'))").last_line == "sees []"
