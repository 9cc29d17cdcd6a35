"""The manager's directories: one manager per run directory, and the files of each env's clients.

Knows: the layout of CONTRACT "Run directory" as files, modes and owners. Must not know: sockets'
traffic, decisions. Files that clients read are replaced atomically, so a client never reads half a
file.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from client_plugin.messages.form import Message, SpokenError, stated
from nodemgr.paths import container_dir, env_dir

LOCK_FILE = "manager.lock"
CONTROL_SOCKET = "control.sock"
EVENTS_SOCKET = "events.sock"
VIEWS_SOCKET = "web/views"
"""The page process asks the manager there, and no other process can."""
PAGE_GROUP = "nodemgr-page"
"""Of the page process of the service nodemgr-web; setup makes the group."""
SIMULATOR_DIR = "sim"
CLIENT_CONF = "client.conf"
SOCKET_NAME = "socket"
KEY_NAME = "key"
SUN_PATH_BYTES = 107
"""Longest name of a UNIX socket that the kernel takes."""
KEY_BYTES = 32
MAX_CONF_BYTES = 2**16
MOST_LINKS = 40
"""The most links that the kernel follows on one path."""
FORMATS_FILE = "formats"
FORMATS = {"jobs": 1, "keys": 1}
"""The format number of the files in each directory of the state.

They are attempts of jobs, and keys of UDP clients. The store and the files of weights have numbers
of their own.
"""


class RunDirError(SpokenError):
    """One line: what is wrong with a directory, and what to do."""


LOADER_MARKS = frozenset(":;$")
"""In a path of a library they end it, or name a variable ($LIB, $ORIGIN): ld.so(8)."""


def check_socket_path(path: Path) -> None:
    """Raises RunDirError where the kernel could not bind it."""
    length = len(os.fsencode(path))
    if length > SUN_PATH_BYTES:
        raise RunDirError(
            f"{path} has {length} bytes, and the name of a UNIX socket at most {SUN_PATH_BYTES}",
            "choose a shorter --run-dir",
            "usage",
        )


def make_open(path: Path) -> None:
    """Make a directory that every user may pass, and its missing parents, under any umask.

    Raises OSError.
    """
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        try:
            missing.mkdir()
        except FileExistsError:
            if not missing.is_dir():
                raise
            continue  # another has made it at this moment: its mode is theirs
        missing.chmod(0o755)


def _check_parents(path: Path) -> None:
    """No other user can put another directory in this one's place.

    Raises RunDirError. A parent that every user may write is sticky, as /tmp is; root trusts no
    group but its own either.
    """
    trusted = {0, os.geteuid(), os.stat("/").st_uid}  # a user namespace has another root
    for each in _way_to(path):
        with contextlib.suppress(FileNotFoundError):
            status = each.lstat()
            others = "" if stat.S_ISLNK(status.st_mode) else _other_writers(status)
            if status.st_uid not in trusted or others:
                where = "a link" if each == path else f"below {each}"
                raise RunDirError(
                    f"{path} is {where}, which uid {status.st_uid} can change"
                    + (f" and so can {others}" if others else ""),
                    (f"take that from them (chmod go-w {each}), or " if others else "")
                    + "choose a directory whose parents only root and you can change",
                )


def _way_to(path: Path) -> Iterator[Path]:
    """Each directory and link by which the kernel finds this one, which is none of them itself."""
    at, rest, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    while rest:
        step = at / rest.pop()
        if step.name == "..":
            at = at.parent
        elif step.is_symlink() and links < MOST_LINKS:
            links += 1
            yield at
            yield step
            target = step.readlink()
            at = Path("/") if target.is_absolute() else at
            rest += [part for part in reversed(target.parts) if part != "/"]
        else:
            yield at
            at = step


def _other_writers(directory: os.stat_result) -> str:
    """The users that may replace what is in it, beside its owner; "": none."""
    if directory.st_mode & stat.S_ISVTX:
        return ""
    if directory.st_mode & stat.S_IWOTH:
        return "every user"
    is_groups = directory.st_mode & stat.S_IWGRP and directory.st_gid != 0
    return f"group {directory.st_gid}" if is_groups and os.geteuid() == 0 else ""


def own_directory(path: Path, mode: int) -> None:
    """Makes a directory that no other user can change or replace. Raises RunDirError."""
    try:
        _check_parents(path)
        make_open(path.parent)
        path.mkdir(mode=mode, exist_ok=True)
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0):
            raise RunDirError(
                f"{path} belongs to user {status.st_uid}",
                "name a directory of your own with --run-dir and --state-dir",
            )
        if status.st_mode & 0o777 != mode and status.st_uid == os.geteuid():
            path.chmod(mode)
        if not os.access(path, os.W_OK | os.X_OK):
            raise RunDirError(
                f"{path} cannot be written",
                "name a directory of your own with --run-dir and --state-dir",
            )
    except OSError as error:
        raise RunDirError(
            f"the directory {path} cannot be used ({error.strerror})",
            "name another with --run-dir and --state-dir",
        ) from None


def prepare(run_dir: Path, state_dir: Path) -> Unused:
    """Makes both directories; returns what was not there. Raises RunDirError."""
    unused = Unused(run_dir, state_dir)
    if taken := set(str(run_dir)) & LOADER_MARKS:
        line = stated(
            f"the run directory {run_dir} has {' and '.join(sorted(taken))} in its name, which the"
            " loader of programs takes for a mark of its own",
            "name another --run-dir",
        )
        raise RunDirError(line)
    for name in (CONTROL_SOCKET, EVENTS_SOCKET):
        check_socket_path(run_dir / name)
    own_directory(run_dir, 0o755)
    own_directory(run_dir / "envs", 0o755)
    own_directory(run_dir / "containers", 0o700)
    own_directory(state_dir, 0o700)
    return unused


def check_formats(state_dir: Path) -> None:
    """Notes the formats of this version. A state without the note is of format 1.

    Raises RunDirError where a later version wrote the files, OSError.
    """
    path = state_dir / FORMATS_FILE
    lines = (_content(path) or b"").decode("ascii", "replace").splitlines()
    for name, number in (line.rpartition(" ")[::2] for line in lines):
        known = FORMATS.get(name, 0)
        if not number.isdecimal() or int(number) > known:
            raise RunDirError(
                f"{state_dir / name} was written by a later version of nodemgr "
                f"({name} {number}; this version reads up to {known})",
                f"install that version again, or move {state_dir / name} and {path} away "
                "(docs/admins/operation.md, Upgrade)",
            )
    refresh(path, "".join(f"{name} {number}\n" for name, number in FORMATS.items()), 0o600)


def lock(run_dir: Path) -> int:
    """The descriptor that makes this manager the only one. Raises RunDirError naming the other."""
    return _lock(
        run_dir,
        Message(
            "another manager (pid {pid}) runs on {path}",
            "stop it first, or name another --run-dir and --state-dir",
        ),
    )


def lock_state(state_dir: Path) -> int:
    """Two run directories must not share one store either. Raises RunDirError."""
    return _lock(
        state_dir,
        Message(
            "another manager (pid {pid}) keeps its state in {path}",
            "stop it first, or name another --state-dir",
        ),
    )


def _lock(directory: Path, taken: Message) -> int:
    path = directory / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)  # a user that can read it can lock it, and no manager starts
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise RunDirError(taken(pid=other, path=directory)) from None
        if is_there(path, os.fstat(descriptor)):
            break
        os.close(descriptor)  # it was removed meanwhile, and another manager may lock the next
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def show_life(run_dir: Path) -> None:
    """Sets the time of the lock file, by which a verb knows that a restart may be under way."""
    with contextlib.suppress(OSError):
        os.utime(run_dir / LOCK_FILE)


def expect_no_restart(run_dir: Path) -> None:
    """Sets that time to the epoch: no verb waits."""
    with contextlib.suppress(OSError):
        os.utime(run_dir / LOCK_FILE, (0, 0))


class Unused:
    """The directories of a manager that holds nothing there yet, to be left as they were."""

    def __init__(self, *directories: Path) -> None:
        self._empty = [path for path in directories if _has_nothing(path)]
        self._missing = [
            path
            for directory in self._empty
            for path in (*reversed(directory.parents), directory)
            if not path.exists()
        ]

    def restore(self) -> None:
        """Removes all that was made there since."""
        for path in [path for directory in self._empty for path in directory.iterdir()]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for directory in reversed(self._missing):
            with contextlib.suppress(OSError):  # another one has put something there
                directory.rmdir()


def _has_nothing(path: Path) -> bool:
    try:
        return not os.listdir(path)
    except FileNotFoundError:
        return True
    except OSError:  # no directory, or one that is closed to us
        return False


def is_there(path: Path, known: os.stat_result) -> bool:
    """Whether this very file is there."""
    try:
        return os.path.samestat(os.stat(path), known)
    except OSError:
        return False


def give_to_group(path: Path, group: str) -> None:
    """Mode 0660 for the manager's user and the group.

    If the group does not exist, or the manager's user may not give the file to it, the mode is for
    its user alone: a user that happens to share the user's own group is no administrator.
    """
    path.chmod(0o600)
    with contextlib.suppress(KeyError, PermissionError):
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
        path.chmod(0o660)


def replace(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, for readers and after a crash of this process.

    No link is followed: a directory that was mounted into a container without :ro is its root's to
    write.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
    )
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, text.encode())
        os.rename(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def refresh(path: Path, text: str, mode: int) -> None:
    """Write the file only if its text changes.

    Clients look at its times, and containers have mounted this very file.
    """
    if _content(path) != text.encode():
        replace(path, text, mode)


def _remove(directory: Path) -> None:
    """As far as possible.

    Root of a container may have made any depth of directories in one that was mounted without :ro.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(directory, ignore_errors=True)


def _content(path: Path) -> bytes | None:
    """The content of a short plain file; None: there is none. Never blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return (
            os.read(descriptor, MAX_CONF_BYTES)
            if stat.S_ISREG(os.fstat(descriptor).st_mode)
            else None
        )
    finally:
        os.close(descriptor)


def conf_text(values: Mapping[str, str | int | None]) -> str:
    """client.conf: one KEY=value a line; None is left out."""
    return "".join(f"{key}={value}\n" for key, value in values.items() if value is not None)


class EnvDirs:
    """The files of each env's clients: RUN/envs/ENV, RUN/containers/ENV, STATE/keys/ENV (UDP).

    RUN/containers/ENV is the directory for containers.
    """

    def __init__(self, run_dir: Path, state_dir: Path) -> None:
        self._run_dir = run_dir
        self._keys_dir = state_dir / "keys"

    def socket_path(self, env: str) -> Path:
        """Raises RunDirError where the name is too long to bind."""
        return self._socket_in(env_dir(self._run_dir, env))

    def container_socket_path(self, env: str) -> Path:
        """The same, of the one that containers are shown."""
        return self._socket_in(container_dir(self._run_dir, env))

    @staticmethod
    def _socket_in(directory: Path) -> Path:
        check_socket_path(directory / SOCKET_NAME)
        return directory / SOCKET_NAME

    def write(self, env: str, conf: Mapping[str, str | int | None]) -> None:
        """Makes or refreshes the directories; OSError where the disk refuses.

        In a container the linker finds a simulated driver by itself, and the client is mounted.
        """
        here = {"env": env, "address": f"unix:{SOCKET_NAME}", **conf}
        for directory, said in (
            (env_dir(self._run_dir, env), here),
            (container_dir(self._run_dir, env), here | {"library_path": None, "client": None}),
        ):
            directory.mkdir(mode=0o755, exist_ok=True)
            directory.chmod(0o755)
            refresh(directory / CLIENT_CONF, conf_text(said), 0o644)

    def write_udp(self, env: str, address: str, conf: Mapping[str, str | int | None]) -> bytes:
        """The same for a client on another machine; returns the env's key.

        The first call makes the key.
        """
        directory = self.key_dir(env)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            key = bytes.fromhex((directory / KEY_NAME).read_text())
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            key = self.renew_key(env)
        text = conf_text({"env": env, "address": f"udp:{address}", "key": KEY_NAME, **conf})
        refresh(directory / CLIENT_CONF, text, 0o600)
        return key

    def key_dir(self, env: str) -> Path:
        return self._keys_dir / env

    def renew_key(self, env: str) -> bytes:
        """Another key, in the place of the old one.

        OSError where the disk refuses: then the old one stays.
        """
        key = secrets.token_bytes(KEY_BYTES)
        replace(self.key_dir(env) / KEY_NAME, key.hex() + "\n", 0o600)
        return key

    def remove(self, env: str) -> None:
        """The env is gone: so are its socket, its settings and its key."""
        _remove(env_dir(self._run_dir, env))
        _remove(container_dir(self._run_dir, env))
        _remove(self._keys_dir / env)

    def remove_others(self, envs: Iterable[str]) -> None:
        """Leftovers of envs that the store does not know."""
        known = set(envs)
        for parent in (self._run_dir / "envs", self._run_dir / "containers", self._keys_dir):
            for directory in parent.iterdir() if parent.is_dir() else ():
                if directory.name not in known:
                    _remove(directory)
