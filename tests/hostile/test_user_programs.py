"""Programs of an ordinary user of the node against root's manager, and what each of them gets."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.gpu.keeper import keeper
from tests.node.programs import said
from tests.node.test_audit import BEHIND, LIBRARY, LOADER
from tests.shim.world import LINKED_WITH_DRIVER, compiled
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, Manager

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root's manager has other users")
GIB, MIB = 2**30, 2**20
HERE = Path(__file__).parent
SYSTEM_PYTHON = ["/usr/bin/python3", "-I", "-S"]
QUICK = {"NODEMGR_BEAT_MS": "50", "NODEMGR_ENFORCE_GRACE_MS": "300"}
USER = "nobody"


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    """A GPU of 16 GiB; alice is an ordinary user's environment."""
    manager = make_manager(simulate="1x16GiB", environment=QUICK)
    manager.quota("alice", 1, memory_bytes=GIB, users=[USER], enforce="kill")
    manager.quota("bob", 1, memory_bytes=4 * GIB)
    return manager


def as_user(node: Manager, command: Sequence[object], **variables: str) -> subprocess.Popen[str]:
    words = ["setpriv", f"--reuid={USER}", f"--regid={65_534}", "--clear-groups", *command]
    return node.spawn("alice", list(map(str, words)), **variables)


def readable(path: Path, directory: Path) -> Path:
    """A copy where every user finds it."""
    directory.chmod(0o755)
    return Path(shutil.copy(path, directory))


COPY = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    void *cuda = dlopen(argv[argc - 1], RTLD_NOW), *context;
    uint64_t address;
    int taken = 0;
    int result = ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context);
    int (*take)(uint64_t *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    while (taken < 40 && take(&address, 64 << 20) == 0)
        taken++;
    printf("%d %d\\n", result, taken);
    fflush(stdout);
    return getchar() == 0;
}
"""
"""Takes 40 times 64 MiB by the driver in a file of any name."""


@pytest.mark.parametrize("way", ["dlmopen", "RTLD_DEEPBIND", "copy"])
def test_a_driver_past_the_shim_is_seen_and_its_process_ended(node: Manager, way: str) -> None:
    """40 times 64 MiB under 1 GiB, by a second driver, by deep binding, by a copy of the driver."""
    events = node.events()
    if way == "copy":
        (node.directory / "copies").mkdir(mode=0o755)
        copy = readable(node.run_dir / "sim" / "libcuda.so.1", node.directory / "copies")
        for name in ("node.state", "node.state.exports"):
            (copy.parent / name).symlink_to(node.run_dir / "sim" / name)
        program = as_user(node, [compiled(COPY, "-ldl"), copy.rename(copy.with_name("libany.so"))])
    else:
        behind = compiled(BEHIND, "-shared", "-fPIC", *LINKED_WITH_DRIVER)
        program = as_user(node, [compiled(LOADER), behind, way])
    assert program.stdout is not None
    assert program.stdout.readline() in ("0 40\n", ""), "it may be ended before it says so"
    offence = "no_lease" if way == "copy" else "over_quota"
    violation = events.expect("audit.violation", env="alice", offence=offence)
    assert (violation["pid"], violation["action"]) == (program.pid, "SIGTERM")
    assert program.wait(WAIT_LIMIT_S) == -signal.SIGTERM


def test_it_reads_and_replaces_nothing_of_others(node: Manager) -> None:
    """Ledgers, gate pages, sockets and memory of other users' processes; the manager's files."""
    holder = node.hold("bob", "-b", str(GIB))
    said(holder)
    script = readable(HERE / "reader.py", node.directory)
    program = as_user(node, [*SYSTEM_PYTHON, script, node.run_dir, node.state_dir])
    stdout, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    assert program.returncode == 0, stderr
    told = json.loads(stdout)
    allowed = {
        *map(str, (node.run_dir / "sim").glob("node.state*")),  # of a simulated node: its GPUs
        *(str(path) for path in (node.run_dir / "envs").glob("*/socket")),
    }
    assert set(told.pop("written")) <= allowed
    assert told == {"descriptors": [], "memories": [], "state": [], "replaced": []}


def has_ended(process: psutil.Process) -> bool:
    """A core is written by then; another of our processes may still have to reap it."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_crash_of_our_processes_leaves_no_core(
    make_manager: Callable[..., Manager], tmp_path: Path
) -> None:
    """Their memory has keys, variables of jobs, and other users' device memory."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "/" in pattern or pattern.startswith("|"):
        pytest.skip(f"core files go to {pattern} here")
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    node = make_manager(
        simulate="1x4GiB", options=["--web", "127.0.0.1:0"], folder=tmp_path,
        environment={"PYTHONSAFEPATH": "1"},
        before_exec=lambda: resource.setrlimit(resource.RLIMIT_CORE, unlimited),
    )  # fmt: skip
    node.quota("alice", 1)
    keeper(node)
    node.call("task_suspend", task="t1")
    node.call("task_resume", task="t1")
    ours = psutil.Process(node.pid).children(recursive=True)
    for process in ours:
        process.send_signal(signal.SIGSEGV)
    while not all(map(has_ended, ours)):
        time.sleep(0.01)
    assert node.process is not None
    node.process.send_signal(signal.SIGSEGV)
    node.wait()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("core")] == []


HELD_BY = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        found += strstr(line, "evil.so") != NULL;
    printf("%d %d\\n", (int)geteuid(), found);
    return 0;
}
"""
EVIL = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { puts("evil code ran"); fflush(stdout); }
int cuInit(unsigned flags) { (void)flags; return 0; }
"""


def test_a_setuid_program_takes_nothing_from_its_users_directory(node: Manager) -> None:
    """Under /etc/ld.so.preload as in a container: the user's variables name a directory of his."""
    theirs = node.directory / "theirs"
    theirs.mkdir()
    library = readable(LIBRARY, theirs)
    shutil.copy(compiled(EVIL, "-shared", "-fPIC"), theirs / "libcuda.so.1")
    shutil.copy(compiled(EVIL, "-shared", "-fPIC"), theirs / "evil.so")
    (theirs / "client.conf").write_text(f"env=alice\naddress=unix:socket\nlibrary_path={theirs}\n")
    (theirs / "preload").write_text(f"{library}\n")
    program = Path(shutil.copy(compiled(HELD_BY), theirs / "setuid"))
    program.chmod(0o4755)
    enter = (
        "mount --make-rprivate / && touch /etc/ld.so.preload && mount --bind $1 /etc/ld.so.preload"
        f" && exec setpriv --reuid={USER} --regid=65534 --clear-groups env NODEMGR_ENV_DIR=$2"
        " LD_LIBRARY_PATH=$2 LD_PRELOAD=$2/evil.so PYTHONPATH=$2 $3"
    )
    was_there = Path("/etc/ld.so.preload").exists()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", enter, "-", theirs / "preload", theirs, program],
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    if not was_there:
        Path("/etc/ld.so.preload").unlink(missing_ok=True)
    assert (done.returncode, done.stdout) == (0, "0 0\n"), done.stderr


def test_a_fork_bomb_and_a_thousand_connections_keep_no_other_environment_out(
    node: Manager,
) -> None:
    """Processes and connections of alice; bob gets his grant meanwhile."""
    code = (
        "import os, signal, socket, sys, time\n"
        "signal.alarm(300); kept = []\n"
        "for _ in range(200):\n"
        "    if os.fork() == 0:\n"
        "        while True: time.sleep(60)\n"
        "try:\n"
        "    for _ in range(2000):\n"
        "        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "        sock.setblocking(False); sock.connect_ex(sys.argv[1]); kept.append(sock)\n"
        "except OSError: pass\n"
        "print('begun', flush=True)\n"
        "sys.stdin.read(); os.killpg(0, signal.SIGKILL)\n"
    )
    socket_path = node.env_dir("alice") / "socket"
    bomb = as_user(node, ["setsid", *SYSTEM_PYTHON, "-c", code, socket_path])
    assert bomb.stdout is not None
    assert bomb.stdout.readline() == "begun\n"
    holder = node.hold("bob", "-b", str(GIB))
    assert said(holder)["error"] is None
    bomb.communicate("", timeout=WAIT_LIMIT_S)


def test_the_hold_program_of_a_user_that_no_quota_names_gets_nothing(node: Manager) -> None:
    node.quota("carol", 1, users=["daemon"])
    words = ["setpriv", f"--reuid={USER}", "--regid=65534", "--clear-groups", str(HOLD)]
    program = node.spawn("carol", [*words, "-b", str(GIB)])
    assert said(program)["error"] is not None
