"""How the verbs for jobs ask: on an environment's client socket, as one of its users, or on the control socket, as an administrator.

Knows: both ways, sheets, pages. Must not know: what is asked, how it is shown.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from nodemgr import paths
from nodemgr.cli import asking
from nodemgr.cli.faults import Exit, Fault
from nodemgr.cli.options import ParamType
from nodemgr.edge import log_pieces

COMPLETED_ENDED = 50
"""So many of the jobs that ended last are among those that a shell completes."""
INLINE_BYTES = 500
"""An order that is longer is written on a sheet (nodemgr/edge/sheets.py)."""
PATIENCE_S = 60.0
"""For an answer out of a long past."""


class Job(ParamType):
    """The id of a job, of an array, or of a job of an array; `requests`: of a waiting request, too; `ended`: completed are those, too."""

    name = "job"

    def __init__(self, *, requests: bool = False, ended: bool = False) -> None:
        self._requests = requests
        self._ended = ended
        self._form = r"j[0-9]{1,15}(\.[0-9]{1,10})?" + ("|r[0-9]{1,15}" if requests else "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(self._form, str(value), re.ASCII):
            known = "j12, or j12.3 of an array" + (", or r17 of a request" if self._requests else "")
            self.fail(f"{value!r} is no job: write its id as `nodemgr queue` shows it ({known})", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: dict[str, None] = {}
        try:
            for way in choose(ctx.params.get("run_dir"), ctx.params.get("env")):
                ended = way.ask("history", limit=COMPLETED_ENDED)["history"] if self._ended else []
                jobs = [*(row["job"] for row in ended), *(row["id"] for row in way.ask("queue")["queue"] if row["job"] or self._requests)]
                for job in jobs:
                    found |= {job.partition(".")[0]: None, job: None}  # an array goes before its jobs
        except Fault:
            pass
        return [CompletionItem(job) for job in found if job.startswith(incomplete)]


JOB = Job()
JOB_OR_ENDED = Job(ended=True)
JOB_OR_REQUEST = Job(requests=True)


class Queue(ParamType):
    """A queue's name."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not paths.is_env_name(value):
            self.fail(f"{value!r} is no name of a queue: {paths.ENV_NAME_FORM}", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            queues = choose(ctx.params.get("run_dir"), ctx.params.get("env"))[0].ask("queue", limit=1)["queues"]
        except Fault:
            return []
        return [CompletionItem(row["name"]) for row in queues if row["name"].startswith(incomplete)]


QUEUE = Queue()


class Way:
    """To the manager. `env`: whose jobs are meant; None: all."""

    env: str | None

    def ask(self, verb: str, timeout_s: float | None = PATIENCE_S, **arguments: Any) -> Any:
        """The answer. Raises Fault; `timeout_s` None: however long it takes."""
        raise NotImplementedError

    def log(self, job_id: str, attempt: int | None) -> Log:
        raise NotImplementedError


class Log:
    """One attempt's output. Of one whose file is gone, the last lines that the history keeps."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.attempt: int = told["attempt"]
        self.living: bool = told["living"]
        self.tail: str | None = told.get("tail")
        self.offset = 0
        """Where the next piece is looked for."""

    def read(self) -> log_pieces.Piece:
        """What was written since the last read; without data: nothing."""
        if self.tail is None:
            piece = self._read(self.offset)
        else:
            piece, self.tail = log_pieces.Piece(self.offset, self.tail.encode(errors="surrogateescape")), ""
        self.offset = piece.at + len(piece.data)
        return piece

    def _read(self, offset: int) -> log_pieces.Piece:
        raise NotImplementedError

    def close(self) -> None: ...


class _FileLog(Log):
    def __init__(self, told: dict[str, Any], descriptor: int | None) -> None:
        super().__init__(told)
        self._descriptor = descriptor

    def _read(self, offset: int) -> log_pieces.Piece:
        assert self._descriptor is not None
        return log_pieces.read(self._descriptor, offset)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _AskedLog(Log):
    def __init__(self, way: AdminWay, told: dict[str, Any]) -> None:
        super().__init__(told)
        self._way = way
        self._job = told["job"]
        self._told: dict[str, Any] | None = told

    def _read(self, offset: int) -> log_pieces.Piece:
        told, self._told = self._told, None
        if told is None:
            told = self._way.ask("job_log_read", job=self._job, attempt=self.attempt, offset=offset)
        return log_pieces.Piece(told.get("at", offset), bytes.fromhex(told.get("data", "")))


class AdminWay(Way):
    """The control socket."""

    def __init__(self, run_dir: Path, env: str | None) -> None:
        self.env = env
        self._run_dir = run_dir
        self._controls: dict[float | None, asking.Control] = {}
        """By how long an answer may take."""

    def ask(self, verb: str, timeout_s: float | None = PATIENCE_S, **arguments: Any) -> Any:
        scope = {"env": self.env} if self.env is not None and verb in SCOPED else {}
        if timeout_s not in self._controls:
            self._controls[timeout_s] = asking.Control(self._run_dir, timeout_s)
        return self._controls[timeout_s].call(verb, **scope, **arguments, by=whose())

    def log(self, job_id: str, attempt: int | None) -> Log:
        return _AskedLog(self, self.ask("job_log_read", job=job_id, attempt=attempt))


SCOPED = frozenset({"queue", "history", "report"})
"""Verbs that an administrator may ask of one environment alone."""


class UserWay(Way):
    """An environment's client socket, in this directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        conf = asking.conf_of(directory)
        self.env = conf.get("env")
        self._address = conf.get("address", "unix:socket")

    def ask(self, verb: str, timeout_s: float | None = PATIENCE_S, **arguments: Any) -> Any:
        answer, descriptors = self._exchange(verb, arguments, timeout_s)
        for descriptor in descriptors:
            os.close(descriptor)
        return answer

    def status(self) -> Any:
        return asking.ask(self.directory, "status")

    def log(self, job_id: str, attempt: int | None) -> Log:
        told, descriptors = self._exchange("job_log", {"job": job_id, "attempt": attempt}, PATIENCE_S)
        return _FileLog(told, descriptors[0] if descriptors else None)

    def _exchange(self, verb: str, arguments: dict[str, Any], timeout_s: float | None) -> tuple[Any, list[int]]:
        text = json.dumps({"verb": verb, "args": arguments}, separators=(",", ":"))
        scheme, _, place = self._address.partition(":")
        if scheme != "unix":
            return asking.ask(self.directory, "order", text), []
        with asking.Conversation(self.directory / place, timeout_s) as talk:
            if len(text) <= INLINE_BYTES:
                return talk.ask("order", text)
            _write(talk, text.encode())
            return talk.ask("order")


def _write(talk: asking.Conversation, text: bytes) -> None:
    """On a sheet, asked for and given back in the same conversation."""
    told, descriptors = talk.ask("sheet")
    try:
        if len(text) > told["sheet_bytes"]:
            raise Fault(
                f"this order has {len(text)} bytes, and may have {told['sheet_bytes']}: "
                "shorten its command or its environment (env -u NAME, or env -i)", Exit.USAGE,
            )  # fmt: skip
        os.pwrite(descriptors[0], text, 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def choose(run_dir: Path | None, env: str | None) -> Sequence[Way]:
    """The environment around us; else an administrator's way, if we may take it; else the environments that let us in, all of them.
    With `env` an administrator asks about that one, and a user as one of its users."""
    directory = run_dir or paths.find_run_dir()
    if env is None and run_dir is None and (own := asking.own_env_dir()) is not None:
        return [UserWay(own)]
    if asking.may_control(directory):
        return [AdminWay(directory, env)]
    if env is not None:
        return [submitters_way(run_dir, env)]
    return [UserWay(open_to_us) for open_to_us in asking.open_env_dirs(directory.absolute())]


def way_to(job_id: str, run_dir: Path | None, env: str | None) -> Way:
    """The one on which that job (or request) is known: whose environment it is need not be said."""
    ways = choose(run_dir, env)
    if len(ways) == 1:
        return ways[0]
    for way in ways:
        try:
            way.ask("job_show", job=job_id)
        except Fault as fault:
            if fault.code != Exit.FAILED:
                raise
        else:
            return way
    names = ", ".join(str(way.env) for way in ways)
    raise Fault(f"{names} have no job {job_id!r} (nodemgr queue shows what waits, nodemgr history what has ended)")


def admins_way(run_dir: Path | None) -> AdminWay:
    """The control socket, for what only admins order. Raises Fault."""
    directory = run_dir or paths.find_run_dir()
    asking.control(directory)
    return AdminWay(directory, None)


def submitters_way(run_dir: Path | None, env: str | None) -> UserWay:
    """A client socket in any case."""
    directory = run_dir or paths.find_run_dir()
    if env is not None:
        return UserWay(asking.known_env_dir(directory.absolute(), env))
    if run_dir is None and (own := asking.own_env_dir()) is not None:
        return UserWay(own)
    return UserWay(asking.only_env_dir(directory.absolute()))


def pages(way: Way, verb: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Each page of a long list, as the manager gives it: from the first on (queue)."""
    after = None
    while True:
        page = way.ask(verb, after=after, **arguments)
        yield page
        after = page["after"]
        if after is None:
            return


def whose() -> str:
    """The person behind an administrator's order, as the history tells it."""
    uid = os.getuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
