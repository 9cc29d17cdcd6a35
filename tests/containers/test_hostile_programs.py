"""The hostile programs of tests/hostile in a real container, with podman's default capabilities."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.ways.locations import preload_entry
from nodemgr.paths import CONTAINER_PAYLOAD_DIR
from tests.containers.conftest import container_node
from tests.containers.podman import Containers
from tests.containers.test_jobs import CPU, submit
from tests.hostile.test_user_programs import COPY, EVIL, HELD_BY
from tests.node.test_audit import BEHIND, LOADER
from tests.shim.world import LINKED_WITH_DRIVER, compiled
from tests.support.manager import HOLD, Manager

pytestmark = pytest.mark.slow
GIB = 2**30
DRIVER = "/usr/lib/libcuda.so.1"


@pytest.fixture
def node(make_manager: Callable[..., Manager], kind: str) -> Iterator[Manager]:
    """Mallory's processes beyond the quota are ended."""
    settings = {"NODEMGR_BEAT_MS": "50", "NODEMGR_ENFORCE_GRACE_MS": "300"}
    for manager in container_node(make_manager, kind, **settings):
        manager.quota("mallory", 1, memory_bytes=GIB, enforce="kill")
        manager.quota("bob", 1, memory_bytes=4 * GIB)
        yield manager


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A directory that the container and the node see at one path."""
    path = Path("/var/tmp") / f"theirs-{tmp_path.parent.name}-{tmp_path.name}"
    path.mkdir(mode=0o755)
    yield path
    shutil.rmtree(path)


def placed(program: Path, directory: Path, name: str) -> str:
    return shutil.copy(program, directory / name)


@pytest.mark.parametrize("way", ["dlmopen", "RTLD_DEEPBIND", "copy", "no preload"])
def test_a_driver_past_the_shim_is_seen_and_its_process_ended(
    node: Manager, containers: Containers, theirs: Path, way: str
) -> None:
    """40 times 64 MiB under 1 GiB. The container's root mounts nothing and unmounts nothing."""
    events = node.events()
    if way in ("copy", "no preload"):
        command = [placed(compiled(COPY, "-ldl"), theirs, "program")]
        command.append(str(theirs / "libany.so") if way == "copy" else DRIVER)
        script = f"cp {DRIVER} {theirs}/libany.so; ln -s /opt/nodemgr/sim/node.state {theirs}/"
    else:
        behind = compiled(BEHIND, "-shared", "-fPIC", *LINKED_WITH_DRIVER)
        command = [
            placed(compiled(LOADER), theirs, "program"), placed(behind, theirs, "behind.so"), way,
        ]  # fmt: skip
        script = "true"
    box = containers.start("mallory", f"--volume={theirs}:{theirs}:rw")
    options = ("--env=NODEMGR_OFF=1",) if way == "no preload" else ()
    assert containers.execute(box, "sh", "-c", script)[0] == 0
    program = containers.spawn(box, *command, options=options)
    assert program.line_with("0 ") == "0 40"
    violation = events.expect("audit.violation", env="mallory")
    assert violation["action"] == "SIGTERM", violation
    assert program.end()[0] != 0


def test_variables_of_a_container_reach_no_hook_and_no_setuid_program(
    node: Manager, containers: Containers, theirs: Path
) -> None:
    """They name a directory with modules and libraries that leave a file `ran` or print a line."""
    evil = compiled(EVIL, "-shared", "-fPIC")
    for name in ("evil.so", "libcuda.so.1"):
        placed(evil, theirs, name)
    trap = f"open({str(theirs / 'ran')!r}, 'w').write(__file__)\n"
    for name in ("sitecustomize.py", "usercustomize.py", "json.py", "client_plugin.py"):
        (theirs / name).write_text(trap)
    library = CONTAINER_PAYLOAD_DIR / "client_plugin"
    assert str(library) in preload_entry(str(CONTAINER_PAYLOAD_DIR))
    (theirs / "client.conf").write_text(f"env=bob\naddress=unix:socket\nlibrary_path={theirs}\n")
    program = Path(placed(compiled(HELD_BY), theirs, "setuid"))
    program.chmod(0o4755)
    hostile = {
        "PYTHONPATH": theirs, "PYTHONHOME": theirs, "PYTHONSTARTUP": theirs / "json.py",
        "LD_PRELOAD": theirs / "evil.so", "LD_LIBRARY_PATH": theirs, "NODEMGR_ENV_DIR": theirs,
        "BASH_ENV": theirs / "json.py",
    }  # fmt: skip
    options = [f"--env={name}={value}" for name, value in hostile.items()]
    code, said, error = containers.run(
        "mallory", str(program), options=[*options, "--user=nobody", f"--volume={theirs}:{theirs}"],
    )  # fmt: skip
    assert (code, said) == (0, "0 0\n"), error
    assert not (theirs / "ran").exists(), (theirs / "ran").read_text()


BOMB = """
import os, socket, sys, time
for _ in range(200):
    if os.fork() == 0:
        while True: time.sleep(60)
kept = []
try:
    for _ in range(2000):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False); sock.connect_ex("/run/nodemgr-env/socket"); kept.append(sock)
except OSError: pass
for path in ("/run/nodemgr-env", "/opt/nodemgr/client_plugin", "/opt/nodemgr/sitecustomize"):
    try:
        for number in range(1000): open(f"{path}/file{number}", "w")
        print("made files in", path)
    except OSError: pass
print("begun", flush=True)
sys.stdin.read()
"""


def test_processes_connections_and_files_keep_no_other_environment_out(
    node: Manager, containers: Containers
) -> None:
    box = containers.start("mallory")
    program = containers.spawn(box, sys.executable, "-I", "-S", "-c", BOMB)
    assert program.line() == "begun"
    code, said, _ = containers.run("bob", str(HOLD), "-s", "0", "-b", str(GIB))
    assert code == 0, said
    containers.tell(box, "kill")
    program.close()


FOLLOW = """
import os, subprocess, sys
null = open(os.devnull, "w")
ones = [subprocess.Popen(["nodemgr", "logs", "--follow", sys.argv[1]], stdout=null, stderr=null)
        for _ in range(int(sys.argv[2]))]
print("begun", flush=True)
sys.stdin.read()
for one in ones: one.kill()
"""


def test_many_followers_of_a_log_keep_no_other_environment_out(
    node: Manager, containers: Containers
) -> None:
    """A hundred here, as processes; bench/log_followers.py measures a thousand connections."""
    box = containers.start("mallory")
    printing = ("sh", "-c", "while sleep 0.05; do echo line; done")
    job = submit(containers, box, *CPU, "--", *printing)
    node.events().expect("job.started", job=job)
    program = containers.spawn(box, sys.executable, "-I", "-S", "-c", FOLLOW, job, "100")
    assert program.line() == "begun"
    code, said, _ = containers.run("bob", str(HOLD), "-s", "0", "-b", str(GIB))
    assert code == 0, said
    node.call("job_withdraw", job=job)
    containers.tell(box, "kill")
    program.close()
