"""The door of descriptors: no file of a file system passes; the page lists every sender."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from pathlib import Path

import pytest

from nodemgr.edge.host import descriptors
from tests.support.manager import ROOT

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
NOEXEC_SEAL = 0x8


def sealed() -> int:
    fd = descriptors.memory("sealed", 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def fifo(directory: Path) -> int:
    os.mkfifo(directory / "fifo")
    return os.open(directory / "fifo", os.O_RDONLY | os.O_NONBLOCK)


REFUSED = {
    "a file": lambda directory: os.open(directory / "f", os.O_RDWR | os.O_CREAT),
    "a file, to read alone": lambda directory: os.open(directory / "f", os.O_RDONLY | os.O_CREAT),
    "a file of a tmpfs": lambda _: os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE),
    "a path alone": lambda directory: os.open(directory, os.O_PATH),
    "a directory": lambda directory: os.open(directory, os.O_RDONLY | os.O_DIRECTORY),
    "a named pipe": fifo,
    "a device": lambda _: os.open("/dev/null", os.O_RDWR),
    "memory that can shrink": lambda _: descriptors.memory("open", 10),
    "a file without a name": lambda directory: os.open(directory, os.O_RDWR | os.O_TMPFILE),
}
PASSES = {
    "sealed memory": sealed,
    "a pipe": lambda: os.pipe()[0],
    "a socket": lambda: os.dup(socket.socket(socket.AF_UNIX).detach()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_no_file_of_a_file_system_is_sent(tmp_path: Path, what: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        fd = REFUSED[what](tmp_path)
    except OSError as error:
        pytest.skip(f"not on this file system: {error}")
    with ours, theirs:
        good = sealed()
        with pytest.raises(PermissionError, match="does not leave"):
            ours.sendmsg([b"packet"], descriptors.rights([good, fd]))
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(10)
    for each in (good, fd):
        os.close(each)


@pytest.mark.parametrize("what", PASSES)
def test_memory_pipes_and_sockets_are_sent(what: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = PASSES[what]()
    with ours, theirs:
        ours.sendmsg([b"packet"], descriptors.rights([fd]))
        packet, fds, _, _ = socket.recv_fds(theirs, 10, 4)
        assert (packet, len(fds)) == (b"packet", 1)
        assert os.path.sameopenfile(fd, fds[0])
    for each in (fd, *fds):
        os.close(each)


def test_memory_of_the_manager_cannot_be_made_a_program() -> None:
    """Before Linux 6.3 it can. It has no mount then either, so setuid counts for nothing there."""
    try:
        os.close(os.memfd_create("probe", NOEXEC_SEAL))
    except OSError:
        pytest.skip("the kernel has no MFD_NOEXEC_SEAL")
    fd = sealed()
    with pytest.raises(PermissionError):
        os.fchmod(fd, 0o4755)
    assert os.fstat(fd).st_mode & 0o111 == 0
    os.close(fd)


# -- the table in docs/security.md --

SENDS = re.compile(
    r"SCM_RIGHTS|\bpass_fds\b|\bsend_fds\b|posix_spawn\(|\bos\.fork\(|\bset_inheritable\("
    r"|\bdescriptors\.rights\(|(?<!_)\bfork\(|\bexecv"
)
FOLDERS = ("nodemgr", "client_plugin/elastic", "csrc")
"""All programs on the node and in containers; forks of a user's own process hand nothing on."""
NOT_SENT = frozenset({
    "nodemgr/edge/clients/descriptor_filter.py",  # receives
    "nodemgr/edge/page/channel.py",  # receives
    "csrc/runner/contact.c",  # receives
})  # fmt: skip
ROW = re.compile(r"^\| `([a-z_]+/[a-z_/0-9]+\.[a-z]+)`", re.MULTILINE)


def senders() -> set[str]:
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.[pch]*"):
            if path.suffix not in (".py", ".c") or "_bin" in path.parts:
                continue
            code = re.sub(r'"""(?s:.*?)"""|/\*(?s:.*?)\*/|//.*|#.*', "", path.read_text())
            if SENDS.search(code):
                found.add(path.relative_to(ROOT).as_posix())
    return found - NOT_SENT


def test_the_page_lists_each_place_that_hands_a_descriptor_on() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    section = page.partition("## Descriptors that are handed out\n")[2].partition("\n## ")[0]
    assert set(ROW.findall(section)) == senders()
