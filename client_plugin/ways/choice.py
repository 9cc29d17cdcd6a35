"""The ways to the manager: the control socket for administrators, client sockets for users.

Knows: both ways, and which one a command line means. Must not know: the question, the output.
"""

from __future__ import annotations

import os
from _thread import get_ident

from client_plugin.messages import ways as messages
from client_plugin.messages.form import stated
from client_plugin.ways import locations
from client_plugin.ways.control import ControlConnection, may_control
from client_plugin.ways.conversation import ANSWER_TIMEOUT_S, Conversation, parsed
from client_plugin.ways.faults import Away, Exit, Fault
from client_plugin.ways.nearest import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

    from client_plugin.ways.locations import AnyPath

ASK_TIMEOUT_S = 60.0
"""The time for an answer from a long history."""
MAX_ANSWER_BYTES = 1 << 22
SCOPED = frozenset({"queue", "history", "report"})
"""Verbs that an administrator may ask of one environment alone."""


class Whom:
    """The part of a command line that selects the way: environment, run directory."""

    def __init__(
        self, run_dir: Optional[AnyPath] = None, env: Optional[str] = None, inside: bool = False
    ) -> None:
        """`run_dir`: the value of --run-dir or NODEMGR_RUN_DIR.

        `inside`: this is a container, which has one environment.
        """
        self.run_dir = None if run_dir is None else os.fspath(run_dir)
        self.env = env
        self.inside = inside

    def found_run_dir(self) -> str:
        return self.run_dir or locations.find_run_dir()


class Way:
    """A way to the manager. `env`: the environment of the jobs; None: all."""

    env: Optional[str]

    def ask(self, verb: str, timeout_s: Optional[float] = ASK_TIMEOUT_S, **arguments: Any) -> Any:
        """The answer to an order. Raises Fault; `timeout_s` None: however long it takes."""
        raise NotImplementedError

    def status(self) -> Any:
        raise NotImplementedError

    def figures(self) -> Any:
        """The part of the status that changes without an event."""
        raise NotImplementedError

    def stay(self) -> Way:
        """The same way for many orders in a row: it keeps its connection until `leave`."""
        return self

    def leave(self) -> None:
        """Closes what `stay` keeps open."""


class AdminWay(Way):
    """The control socket."""

    def __init__(self, run_dir: str, env: Optional[str]) -> None:
        self.env = env
        self.run_dir = run_dir
        self._controls: Dict[Tuple[Optional[float], int], ControlConnection] = {}
        """The connections by the longest time of an answer, and by the thread that asks.

        Two threads of `top` on one connection would take each other's answers.
        """

    def ask(self, verb: str, timeout_s: Optional[float] = ASK_TIMEOUT_S, **arguments: Any) -> Any:
        scope = {"env": self.env} if self.env is not None and verb in SCOPED else {}
        key = (timeout_s, get_ident())
        if key not in self._controls:
            self._controls[key] = ControlConnection(self.run_dir, timeout_s)
        return self._controls[key].call(verb, **scope, **arguments)

    def status(self) -> Any:
        return ControlConnection(self.run_dir).call("status")

    def figures(self) -> Any:
        return ControlConnection(self.run_dir).call("figures")


class UserWay(Way):
    """An environment's client socket, in this directory."""

    def __init__(self, directory: AnyPath) -> None:
        self.directory = os.fspath(directory)
        conf = conf_of(self.directory)
        self.env = conf.get("env")
        scheme, _, place = conf.get("address", "unix:socket").partition(":")
        self.socket = os.path.join(self.directory, place) if scheme == "unix" else None
        """None: its clients come over UDP."""

    def ask(self, verb: str, timeout_s: Optional[float] = ASK_TIMEOUT_S, **arguments: Any) -> Any:
        answer, descriptors = self.exchange(verb, timeout_s, arguments)
        for descriptor in descriptors:
            os.close(descriptor)
        return answer

    def status(self) -> Any:
        return self.question("status")

    def figures(self) -> Any:
        return self.question("figures")

    def question(self, what: str, argument: Optional[str] = None) -> Any:
        """Ask a question that an environment may ask about itself."""
        if self.socket is None:
            return parsed(_ask_library(self.directory, what, argument))
        with Conversation(self.socket, ANSWER_TIMEOUT_S) as talk:
            answer, descriptors = talk.ask(what, argument)
        for descriptor in descriptors:
            os.close(descriptor)
        return answer

    def stay(self) -> UserWay:
        return StayingWay(self.directory)

    def exchange(
        self, verb: str, timeout_s: Optional[float], arguments: Dict[str, Any]
    ) -> Tuple[Any, List[int]]:
        if self.socket is None:
            import json

            return (
                self.question(
                    "order", json.dumps({"verb": verb, "args": arguments}, separators=(",", ":"))
                ),
                [],
            )
        with Conversation(self.socket, timeout_s) as talk:
            return talk.order(verb, arguments)


class StayingWay(UserWay):
    """A client socket with one connection for all orders."""

    def __init__(self, directory: AnyPath) -> None:
        super().__init__(directory)
        self._talks: Dict[Optional[float], Conversation] = {}
        """The connections by the longest time of an answer."""

    def exchange(
        self, verb: str, timeout_s: Optional[float], arguments: Dict[str, Any]
    ) -> Tuple[Any, List[int]]:
        if self.socket is None:
            return super().exchange(verb, timeout_s, arguments)
        if timeout_s not in self._talks:
            self._talks[timeout_s] = Conversation(self.socket, timeout_s).__enter__()
        try:
            return self._talks[timeout_s].order(verb, arguments)
        except BaseException:  # a late answer must not be taken for the next one's
            self.leave()
            raise

    def leave(self) -> None:
        while self._talks:
            self._talks.popitem()[1].__exit__()


def conf_of(directory: str) -> Dict[str, str]:
    """An environment's settings. Raises Fault."""
    try:
        return locations.read_conf(directory)
    except OSError as error:
        line = stated(
            f"{directory}/client.conf cannot be read ({error.strerror})",
            "name the directory of an environment",
        )
        raise Fault(line, code=Exit.UNREACHABLE) from None


def _ask_library(directory: str, what: str, argument: Optional[str]) -> str:
    """Over UDP the client library asks: it has the key, the counters and the repeats."""
    import ctypes
    import signal

    from client_plugin import native

    address = conf_of(directory).get("address")
    os.environ["NODEMGR_ENV_DIR"] = directory
    out = ctypes.create_string_buffer(MAX_ANSWER_BYTES)
    try:
        library = native.load()
    except (ImportError, OSError, AttributeError) as error:
        raise Fault(
            f"the client cannot be loaded into this Python ({error})",
            "nodemgr doctor says more",
            code=Exit.UNREACHABLE,
        ) from None
    # Python would handle Ctrl-C only after the call in C
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        length, descriptor = library.ask(what, argument, out, int(ANSWER_TIMEOUT_S * 1_000))
    finally:
        signal.signal(signal.SIGINT, before)
    if descriptor >= 0:
        os.close(descriptor)
    if length < 0:
        raise Away(
            f"no manager answers behind {address}; tasks that run go on",
            "try again, or ask an admin to start it",
        )
    return os.fsdecode(out.raw[:length])


# -- the choice of a way --


def choose(whom: Whom, has_past: bool = False) -> Sequence[Way]:
    """The surrounding environment, else an administrator's way, else all envs that let the user in.

    An administrator's way is taken if this user may take it. With `env` an administrator asks about
    that environment, and a user asks as one of its users. `has_past`: the answer may be about an
    environment that is removed; `refuse_unknown` serves where it is empty.
    """
    if whom.inside:
        return [_inside(whom)]
    directory = whom.found_run_dir()
    if whom.env is None and whom.run_dir is None:
        own = locations.own_env_dir()
        if own is not None:
            return [UserWay(own)]
    if whom.env is not None and not has_past:
        known_env_dir(directory, whom.env)
    if may_control(directory):
        return [AdminWay(directory, whom.env)]
    if whom.env is not None:
        return [users_way(whom)]
    return [UserWay(open_to_us) for open_to_us in open_env_dirs(os.path.abspath(directory))]


def node_or_env(whom: Whom) -> Way:
    """The named or surrounding environment, else the whole node, else the only env.

    The whole node is chosen if this user may ask about it; the only env is the one that lets the
    user in.
    """
    if (
        whom.inside
        or whom.env is not None
        or (whom.run_dir is None and locations.own_env_dir() is not None)
    ):
        return users_way(whom)
    directory = whom.found_run_dir()
    if may_control(directory) is not False:
        return AdminWay(directory, None)
    return UserWay(only_env_dir(directory))


def users_way(whom: Whom) -> UserWay:
    """A client socket in any case."""
    if whom.inside:
        return _inside(whom)
    directory = os.path.abspath(whom.found_run_dir())
    if whom.env is not None:
        return UserWay(known_env_dir(directory, whom.env))
    if whom.run_dir is None:
        own = locations.own_env_dir()
        if own is not None:
            return UserWay(own)
    return UserWay(only_env_dir(directory))


def admins_way(whom: Whom) -> AdminWay:
    """The control socket, for what only admins order. Raises Fault."""
    directory = whom.found_run_dir()
    refuse_users(directory)
    return AdminWay(directory, None)


def refuse_users(run_dir: AnyPath) -> None:
    """Raise Fault if this user may not give orders on the control socket."""
    if may_control(run_dir) is False:
        raise Fault(
            "only root, the manager's user and the group nodemgr may give orders to the manager "
            f"at {run_dir}",
            "for your own environment: nodemgr status, queue, history, report, release, doctor",
        )


def way_to(job_id: str, whom: Whom) -> Way:
    """The way on which that job (or request, or task) is known, whatever its environment."""
    ways = choose(whom)
    if len(ways) == 1:
        return ways[0]
    for way in ways:
        try:
            if job_id.startswith("t"):
                way.ask("task_show", task=job_id)
            else:
                way.ask("job_show", job=job_id)
        except Fault as fault:
            if fault.code != Exit.FAILED:
                raise
        else:
            return way
    names = ", ".join(str(way.env) for way in ways)
    if job_id.startswith("r"):
        raise Fault(
            f"in {names} no request {job_id!r} waits",
            "nodemgr status shows requests, and the tasks of those that were granted",
        )
    if job_id.startswith("t"):
        raise Fault(
            f"{names} have no record of a task {job_id!r}",
            "nodemgr status shows the tasks that run",
        )
    raise Fault(
        f"{names} have no job {job_id!r}",
        "nodemgr queue shows what waits, nodemgr history what has ended",
    )


def pages(way: Way, verb: str, **arguments: Any) -> Iterator[Dict[str, Any]]:
    """Each page of a long list, as the manager gives it: from the first on (queue)."""
    after = None
    while True:
        page = way.ask(verb, after=after, **arguments)
        yield page
        after = page["after"]
        if after is None:
            return


def _inside(whom: Whom) -> UserWay:
    directory = locations.around_us()
    try:
        own = locations.read_conf(directory).get("env")
    except OSError:
        line = stated(
            f"{directory}/client.conf cannot be read: this container is in no environment",
            "start it with --device nodemgr.local/env=NAME",
        )
        raise Fault(line, code=Exit.UNREACHABLE) from None
    if whom.env not in (None, own):
        raise Fault(
            f"this container is in environment {own}, and its jobs are, too",
            "leave --env out",
            code=Exit.QUOTA_REFUSES,
        )
    return UserWay(directory)


def refuse_unknown(whom: Whom) -> None:
    """Raise Fault where the named environment is none of this node."""
    if whom.env is not None and not whom.inside:
        known_env_dir(whom.found_run_dir(), whom.env)


def known_env_dir(run_dir: AnyPath, env: str) -> str:
    directory = locations.env_dir(run_dir, env)
    try:
        os.stat(os.path.join(directory, locations.CONF))
    except PermissionError:
        pass  # its reader names the right
    except OSError:
        refuse_env(run_dir, env)
    return directory


def refuse_env(run_dir: AnyPath, env: str) -> NoReturn:
    """There is no such environment, or no manager."""
    try:
        known = os.listdir(os.path.join(run_dir, "envs"))
    except OSError:
        known = []
    if not known and may_control(run_dir) is None:
        raise Fault(messages.NO_MANAGER_ON(run_dir=run_dir), code=Exit.UNREACHABLE)
    if env in known:
        line = stated(
            f"the files of environment {env!r} in {run_dir} are not whole",
            "the manager makes them again within seconds, if it runs: `nodemgr doctor`",
        )
        raise Fault(line, code=Exit.UNREACHABLE)
    meant = did_you_mean(env, known)
    raise Fault(
        f"no environment {env!r} at {run_dir}",
        f"an admin makes it with `nodemgr quota set {env} --gpus N`{meant}",
        code=Exit.QUOTA_REFUSES,
    )


def only_env_dir(run_dir: AnyPath) -> str:
    """The directory of the only environment that lets this user in."""
    open_to_us = open_env_dirs(run_dir)
    if len(open_to_us) > 1:
        names = ", ".join(map(os.path.basename, open_to_us))
        raise Fault(
            f"you may enter several environments ({names})", "name one with --env", code=Exit.USAGE
        )
    return open_to_us[0]


def open_env_dirs(run_dir: AnyPath) -> List[str]:
    """The directories of the environments that let this user in; there is one at least."""
    open_to_us = []
    try:
        there = locations.env_dirs(run_dir)
    except OSError:
        there = []
    for directory in there:
        try:
            UserWay(directory).status()
        except Fault as fault:
            if fault.code != Exit.QUOTA_REFUSES:
                raise
        else:
            open_to_us.append(directory)
    if open_to_us:
        return open_to_us
    if may_control(run_dir) is None:
        raise Fault(messages.NO_MANAGER_ON(run_dir=run_dir), code=Exit.UNREACHABLE)
    raise Fault(
        f"no environment at {run_dir} lets you in, and you are no admin there",
        "ask one to name you in a quota",
        code=Exit.QUOTA_REFUSES,
    )


def user() -> str:
    """The user of this process, by name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
