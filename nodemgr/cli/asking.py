"""Whom a verb asks, and how: the manager on its control socket (admins), or as one of an environment's users on that
environment's client socket.

Knows: the two ways, and what a failure on them means to a person. Must not know: what is asked.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from nodemgr import paths
from nodemgr.cli.faults import Exit, Fault, Lost

REFUSAL_EXITS = {"usage": Exit.USAGE, "quota": Exit.QUOTA_REFUSES}
"""A refusal's code, where it is no plain failure."""
DENIAL_EXITS = {
    "over_quota": Exit.QUOTA_REFUSES, "more_than_node": Exit.QUOTA_REFUSES, "no_gpu": Exit.QUOTA_REFUSES,
    "unknown_env": Exit.QUOTA_REFUSES, "forbidden_user": Exit.QUOTA_REFUSES, "memory_above_limit": Exit.QUOTA_REFUSES,
    "wait_timeout": Exit.WAIT_TIMED_OUT,
}  # fmt: skip
"""The codes of a DENY (nodemgr/core/model.py) that have an exit code of their own."""

ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 20


class Control:
    """The manager's control socket, with its failures as Faults."""

    def __init__(self, run_dir: Path, timeout_s: float | None = 10.0) -> None:
        from nodemgr.edge.control_client import ControlClient

        self._client = ControlClient(run_dir, timeout_s)

    def call(self, verb: str, **arguments: Any) -> Any:
        """The verb's result. Raises Fault."""
        from nodemgr.edge.control_client import ManagerLost, ManagerRefused, ManagerUnreachable

        try:
            return self._client.call(verb, **arguments)
        except ManagerLost as lost:
            raise Lost(str(lost)) from None
        except ManagerUnreachable as away:
            raise Fault(str(away), Exit.UNREACHABLE) from None
        except ManagerRefused as refused:
            raise Fault(str(refused), REFUSAL_EXITS.get(refused.code, Exit.FAILED)) from None


def follow(run_dir: Path, since: int) -> Iterator[dict[str, Any]]:
    """The manager's events after sequence number `since`, those to come included, over its restarts. Raises Fault."""
    from nodemgr.edge.control_client import EventStream, ManagerUnreachable

    try:
        with EventStream(run_dir) as stream:
            yield from stream.follow(since)
    except ManagerUnreachable as away:
        raise Fault(str(away), Exit.UNREACHABLE) from None


def control(run_dir: Path | None) -> Control:
    """The control socket of the manager that is meant; for verbs that only admins have."""
    directory = run_dir or paths.find_run_dir()
    if may_control(directory) is False:
        raise Fault(
            f"only root and the group nodemgr may give orders to the manager at {directory}; "
            "what concerns your own environment: nodemgr status, queue, release, doctor"
        )
    return Control(directory)


def who() -> str:
    """The user behind an order, as the manager's events tell it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def may_control(run_dir: Path) -> bool | None:
    """Whether this user may talk on the control socket; None: there is none."""
    path = run_dir / "control.sock"
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        return None
    return os.access(path, os.W_OK)


def own_env_dir() -> Path | None:
    """The directory of the environment that this process runs in, or None outside of any."""
    named = os.environ.get("NODEMGR_ENV_DIR")
    directory = Path(named) if named else paths.CONTAINER_ENV_DIR
    return directory if (directory / "client.conf").is_file() else None


def read_client_conf(directory: Path) -> dict[str, str]:
    """The settings that the manager wrote for the clients of an environment. Raises OSError."""
    text = (directory / "client.conf").read_text(encoding="utf-8", errors="replace")
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def own_or_all(what: str, *, run_dir: Path | None, env: str | None, argument: str | None = None, **admin: Any) -> Any:
    """The answer to `what` for the environment that is named or that we are in, else for the whole node if this user
    may ask that, else for the one environment that he may enter. `admin` are the control verb's arguments."""
    directory = run_dir or paths.find_run_dir()
    if env is not None:
        return ask(known_env_dir(directory, env), what, argument)
    if run_dir is None and (own := own_env_dir()) is not None:
        return ask(own, what, argument)
    if may_control(directory) is not False:
        return Control(directory).call(what, **admin)
    return ask(only_env_dir(directory), what, argument)


def known_env_dir(run_dir: Path, env: str) -> Path:
    directory = paths.env_dir(run_dir, env)
    if not directory.is_dir():
        if not run_dir.is_dir():
            raise Fault(f"no manager has its run directory at {run_dir} (start one: nodemgr serve)", Exit.UNREACHABLE)
        raise Fault(f"no environment {env!r} at {run_dir} (an admin makes it: nodemgr quota set {env} --gpus N)", Exit.QUOTA_REFUSES)
    return directory


def only_env_dir(run_dir: Path) -> Path:
    """The directory of the only environment that lets this user in."""
    open_to_us = open_env_dirs(run_dir)
    if len(open_to_us) > 1:
        raise Fault(f"you may enter several environments ({names_of(open_to_us)}): name one with --env", Exit.USAGE)
    return open_to_us[0]


def open_env_dirs(run_dir: Path) -> list[Path]:
    """The directories of the environments that let this user in; there is one at least."""
    open_to_us = []
    for directory in sorted((run_dir / "envs").glob("*/")):
        try:
            ask(directory, "status")
        except Fault as fault:
            if fault.code != Exit.QUOTA_REFUSES:
                raise
        else:
            open_to_us.append(directory)
    if open_to_us:
        return open_to_us
    if may_control(run_dir) is None:
        raise Fault(f"no manager runs on {run_dir}: start one with nodemgr serve, or name its --run-dir", Exit.UNREACHABLE)
    raise Fault(f"no environment at {run_dir} lets you in, and you are no admin there: ask one to name you in a quota", Exit.QUOTA_REFUSES)


def names_of(env_dirs: Iterable[Path]) -> str:
    return ", ".join(directory.name for directory in env_dirs)


def conf_of(directory: Path) -> dict[str, str]:
    """An environment's settings. Raises Fault."""
    try:
        return read_client_conf(directory)
    except OSError as error:
        said = f"{directory}/client.conf cannot be read ({error.strerror})"
        raise Fault(f"{said}: is this an environment's directory?", Exit.UNREACHABLE) from None


def ask(directory: Path, what: str, argument: str | None = None) -> Any:
    """What an environment may know about itself, asked over its clients' way to the manager. Raises Fault."""
    scheme, _, place = conf_of(directory).get("address", "unix:socket").partition(":")
    if scheme != "unix":
        return _parsed(_ask_client(directory, what, argument))
    with Conversation(directory / place, ANSWER_TIMEOUT_S) as talk:
        answer, descriptors = talk.ask(what, argument)
    for descriptor in descriptors:
        os.close(descriptor)
    return answer


def _parsed(text: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        raise Fault("the manager's answer is no JSON: are nodemgr here and the manager of one version?") from None
    if isinstance(answer, dict) and "error" in answer:
        raise Fault(str(answer["error"]), REFUSAL_EXITS.get(str(answer.get("code")), Exit.FAILED))
    return answer


class Conversation:
    """Questions on one connection to an environment's client socket. Every method raises Fault."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        """`timeout_s`: for each packet; None: however long it takes."""
        self._path = path
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._rid = 0

    def __enter__(self) -> Self:
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        try:
            self._socket.connect(str(self._path))
        except OSError as error:
            self._socket.close()
            raise self._gone(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, what: str, argument: str | None = None) -> tuple[Any, list[int]]:
        """The answer, and the descriptors that came with it, which are the caller's to close."""
        from nodemgr.edge import wire

        self._rid += 1
        descriptors: list[int] = []
        try:
            self._socket.send(wire.encode("ASK", rid=self._rid, what=what, argument=argument))
            return _parsed(self._pages(descriptors)), descriptors
        except TimeoutError:
            raise Lost(f"the manager behind {self._path} does not answer (its log says why)") from None
        except OSError as error:
            raise Lost(f"the manager behind {self._path} went away ({error.strerror}); tasks that run go on") from None
        except wire.WireError as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> Fault:
        said = getattr(error, "strerror", None) or error
        return Fault(f"no manager answers behind {self._path} ({said}); tasks that run go on", Exit.UNREACHABLE)

    def _receive(self, descriptors: list[int]) -> bytes:
        from nodemgr.edge import wire

        if self._timeout_s is None:
            from nodemgr.edge.interruptible import readable

            readable((self._socket.fileno(),), None)
        self._socket.settimeout(self._timeout_s)
        packet, received, _, _ = socket.recv_fds(self._socket, wire.PACKET_BYTES, 1)
        descriptors += received
        return packet

    def _pages(self, descriptors: list[int]) -> str:
        """The pages of one answer, put together."""
        from nodemgr.edge import wire

        pages: dict[int, str] = {}
        while packet := self._receive(descriptors):
            message = wire.decode(packet, wire.Direction.DOWN)
            if message.verb == "DENY":
                raise Fault(message.text("reason") or "refused", DENIAL_EXITS.get(message.text("code") or "", Exit.FAILED))
            if message.verb == "PART" and message.number("rid") == self._rid:
                pages[message.number("index") or 0] = message.text("data") or ""
                if len(pages) == message.number("count"):
                    return "".join(pages[index] for index in sorted(pages))
        raise Lost(f"the manager behind {self._path} closed the connection (its log says why)")


def _ask_client(directory: Path, what: str, argument: str | None) -> str:
    """Over UDP the client library asks: it has the key, the counters and the repeats."""
    import ctypes

    os.environ["NODEMGR_ENV_DIR"] = str(directory)
    library = ctypes.CDLL(str(client_library()))
    out = ctypes.create_string_buffer(MAX_ANSWER_BYTES)
    length = library.nodemgr_ask(
        what.encode(), None if argument is None else argument.encode(), out, ctypes.sizeof(out), int(ANSWER_TIMEOUT_S * 1_000)
    )
    if length < 0:
        raise Fault(f"no manager answers behind {read_client_conf(directory).get('address')}; tasks that run go on", Exit.UNREACHABLE)
    return out.raw[:length].decode(errors="replace")


def client_library() -> Path:
    """The shim, which is also the client in C."""
    return paths.payload_dir() / "client_plugin" / "_lib" / "libnodemgr.so"
