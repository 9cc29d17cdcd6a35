"""Readers and writers of every file of a real manager's two directories.

The modes hold under any umask.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.edge.host import privileges
from tests.node.programs import finish, said
from tests.support.manager import Manager

Make = Callable[..., Manager]
FILES = {
    "run": "drwxr-xr-x root root",
    "run/manager.lock": "-rw------- root root",
    "run/control.sock": "srw-rw---- root users",
    "run/events.sock": "srw-rw---- root users",
    "run/envs": "drwxr-xr-x root root",
    "run/envs/alice": "drwxr-xr-x root root",
    "run/envs/alice/client.conf": "-rw-r--r-- root root",
    "run/envs/alice/socket": "srw-rw-rw- root root",
    "run/containers": "drwx------ root root",
    "run/containers/alice": "drwxr-xr-x root root",
    "run/containers/alice/client.conf": "-rw-r--r-- root root",
    "run/containers/alice/socket": "srw-rw-rw- root root",
    "run/ld.so.preload": "-rw-r--r-- root root",
    "run/cdi": "drwxr-xr-x root root",
    "run/cdi/nodemgr.json": "-rw-r--r-- root root",
    "run/sim": "drwxr-xr-x root root",
    "run/sim/libcuda.so.1": "-rwxr-xr-x root root",
    "run/sim/libnvidia-ml.so.1": "-rwxr-xr-x root root",
    "run/sim/node.state": "-rw-rw-rw- root root",
    "run/sim/node.state.exports": "-rw-rw-rw- root root",
    "state": "drwx------ root root",
    "state/manager.lock": "-rw------- root root",
    "state/state.db": "-rw------- root root",
    "state/state.db-mark": "-rw------- root root",
    "state/state.db-wal": "-rw------- root root",
    "state/state.db-shm": "-rw------- root root",
    "state/client": "drwxr-xr-x root root",
    "state/client/current": "lrwxrwxrwx root root",
    "state/formats": "-rw------- root root",
    "state/keys": "drwx------ root root",
    "state/keys/alice": "drwx------ root root",
    "state/keys/alice/client.conf": "-rw------- root root",
    "state/keys/alice/key": "-rw------- root root",
}
"""All of them.

A client's socket is open to all: the kernel identifies the peer, and the manager decides. In a
container there is no such check, so no other user of the node gets as far as those sockets.
"""

COPIES = re.compile(r"/state/client/[0-9a-f]{16}(/|$)")
"""The client as containers are shown it: tests/edge/containers/test_payload.py."""


def listed(directory: Path) -> dict[str, str]:
    def line(path: Path) -> str:
        found = path.lstat()
        return (
            f"{stat.filemode(found.st_mode)} {pwd.getpwuid(found.st_uid).pw_name}"
            f" {grp.getgrgid(found.st_gid).gr_name}"
        )

    tops = [directory / "run", directory / "state"]
    found = [
        path for top in tops for path in (top, *top.rglob("*")) if not COPIES.search(str(path))
    ]
    return {str(path.relative_to(directory)): line(path) for path in found}


@pytest.mark.skipif(os.geteuid() != 0, reason="root's manager is meant")
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_every_file_has_the_mode_that_it_needs(make_manager: Make, umask: int) -> None:
    manager = make_manager(
        simulate="1x8GiB",
        options=["--udp", "127.0.0.1:0"],
        environment={"NODEMGR_GROUP": "users"},
        before_exec=lambda: os.umask(umask),
    )
    manager.quota("alice", 1)
    assert listed(manager.directory) == FILES
    manager.restart()
    assert listed(manager.directory) == FILES


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
def test_a_running_manager_has_given_up_what_it_does_not_use(make_manager: Make) -> None:
    """In each of its threads; and it grants all the same."""
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1)
    program = manager.hold("alice")
    assert said(program)["error"] is None
    most = sum(1 << row.number for row in privileges.RETAINED)
    threads = list(Path(f"/proc/{manager.pid}/task").iterdir())
    assert len(threads) > 1
    for thread in threads:
        try:
            text = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # a thread of a moment
            continue
        for name in ("CapPrm", "CapEff", "CapBnd"):
            found = re.search(rf"{name}:\t([0-9a-f]+)", text)
            assert found is not None
            assert int(found[1], 16) & ~most == 0, f"{thread} {name}"
        assert "NoNewPrivs:\t1" in text
    assert finish(program) == (0, "")
