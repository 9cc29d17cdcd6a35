"""The one table of verbs. A row stands beside its handler: rights, arguments, waits, cost.

Knows: the kinds of callers, how a row is found and refused, which reading it waits for. Must not
know: sockets, packets, the work of a verb.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag, auto
from typing import Any, NamedTuple, TypeVar

from nodemgr.core.model.entities import Ended
from nodemgr.edge.api.views import Views
from nodemgr.edge.clients.client_sessions import ASK_NS, Session
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel.processes import Identity
from nodemgr.edge.rpc.cost import Units
from nodemgr.edge.rpc.operation import Argument, Later, OperationError, Reply, check
from nodemgr.edge.store.database import StoreFailed
from nodemgr.messages import orders as messages

Handled = TypeVar("Handled", bound=Callable[..., Any])


class Right(Flag):
    """The kinds of callers."""

    ENV = auto()
    """A user of an environment, on its socket or over UDP."""
    ADMIN = auto()
    ENV_TOKEN = auto()
    """A viewer of the web page with a token of an environment,"""
    ADMIN_TOKEN = auto()
    """or of administrators."""
    PAGE = auto()
    """The page process itself, and its viewers without a token."""


ENV, ADMIN, PAGE = Right.ENV, Right.ADMIN, Right.PAGE
VIEWERS = Right.ENV_TOKEN | Right.ADMIN_TOKEN
EVERYONE = ENV | ADMIN | VIEWERS


class Speaker(NamedTuple):
    """The caller, as the history records it; `env` None: an administrator, or the page."""

    right: Right
    name: str
    user: str
    """The user's name alone; of a token, the same as `name`."""
    env: str | None
    session: Session | None = None
    past: Mapping[str, Ended] | None = None
    """Of an order to many ids: what the store has of those that do not live; None: ask it."""
    caller: Identity | None = None
    """The process of an administrator, by the kernel's word."""

    def took(self, duration_ns: int) -> None:
        """Counts the time of a later turn on the caller's environment."""
        if self.session is not None:
            self.session.took(duration_ns)

    def scope(self, given: Mapping[str, Any]) -> str | None:
        """The environment that an order is about; None: all. Raises OperationError."""
        named: str | None = given.get("env")
        if self.env is not None and named not in (None, self.env):
            raise OperationError(messages.OTHER_ENV(env=self.env))
        return self.env or named


class Needs(Enum):
    """The reading that a verb waits for before it is carried out."""

    NOTHING = auto()
    FIGURES = auto()
    """The figures of GPUs and tasks,"""
    STATUS = auto()
    """and a fresh reading of the GPUs before."""
    AUDIT = auto()
    """For a user: what the driver shows is judged."""


LargestStep = tuple[tuple[Units, int], ...]
ONE: LargestStep = ((Units.CHANGE, 1),)
"""One row, or a list that is made in the thread of the past."""
CHANGES: LargestStep = ((Units.CHANGE, Units.CHANGE.within()),)


class VerbRow(NamedTuple):
    """A row. `perform` takes the caller and the checked arguments, and raises OperationError."""

    name: str
    who: Right
    arguments: Mapping[str, Argument]
    perform: Callable[[Any, dict[str, Any]], Any]
    needs: Needs = Needs.NOTHING
    changes: bool = False
    """It changes what is stored; else it only reads."""
    cost_ns: int = ASK_NS
    """For the caller's environment, beyond that of the packet."""
    steps: LargestStep = ONE
    """The work in its largest step.

    A job that is larger is a step of its own: 2 MiB of words and variables are 8 200 units, 1 000
    jobs that it waits for are 40 000.
    """


NO_ARGUMENTS: Mapping[str, Argument] = {}


def verb(
    name: str, who: Right, arguments: Mapping[str, Argument] = NO_ARGUMENTS, **more: Any
) -> Callable[[Handled], Handled]:
    """Makes a method the handler of a verb; `more`: further fields of its row."""

    def mark(method: Handled) -> Handled:
        method.__dict__["verb"] = VerbRow(name, who, arguments, method, **more)
        return method

    return mark


def rows_of(homes: Iterable[object]) -> dict[str, VerbRow]:
    """The rows of the objects with handlers, by the names of the verbs."""
    rows: dict[str, VerbRow] = {}
    for home in homes:
        for name, method in inspect.getmembers(type(home), inspect.isfunction):
            if (row := method.__dict__.get("verb")) is not None:
                assert row.name not in rows, row.name
                rows[row.name] = row._replace(perform=getattr(home, name))
    return rows


def answer_to(perform: Callable[[], Any], reply: Reply) -> None:
    """`reply` gets, now or later, the answer of `perform` or the refusal in its place."""
    answer: Any
    try:
        answer = perform()
    except OperationError as error:
        answer = error
    except StoreFailed as error:
        answer = OperationError(messages.STORE_FAILED(fault=error))
    except Exception as error:  # an answer is owed in any case
        stderr_log.fault("in an order", error)
        answer = OperationError(messages.INTERNAL_FAULT(error=repr(error)))
    if isinstance(answer, Later):
        answer.begin(reply)
    else:
        reply(answer)


Begin = Callable[[Speaker, str, Any, Reply], None]
Elsewhere = Callable[[Begin, Speaker, str, object, Reply], bool]
"""Takes an order that is not this node's alone; False: it is. It may begin a part of it here."""


class Verbs:
    """The rows of all homes of handlers, and the one way in which an order is carried out."""

    def __init__(
        self, daemon: Daemon, views: Views, homes: Iterable[object], elsewhere: Elsewhere
    ) -> None:
        self._daemon, self._views, self._elsewhere = daemon, views, elsewhere
        self.rows = rows_of(homes)

    def find(self, caller: Speaker, name: str, given: object) -> tuple[VerbRow, dict[str, Any]]:
        """The row and the checked arguments. Raises OperationError."""
        row = self.rows.get(name)
        if row is None or not row.who & caller.right:
            raise self._no_right(row, caller.right, name)
        env = given.get("env") if isinstance(given, dict) else None
        if caller.right is Right.ENV_TOKEN and env not in (None, caller.env):
            raise OperationError(
                f"this token is for environment {caller.env} alone",
                "enter a token of the other environment",
                "forbidden",
            )
        return row, check(row.arguments, given)

    def _no_right(self, row: VerbRow | None, right: Right, name: str) -> OperationError:
        if row is not None and right is PAGE and row.who & VIEWERS:
            return OperationError(
                "this needs a token of the web page", "`nodemgr web token` makes one", "token"
            )
        if row is not None and right is Right.ENV_TOKEN and Right.ADMIN_TOKEN in row.who:
            return OperationError(
                "this needs an administrator's token",
                "`nodemgr web token --admin` makes one",
                "forbidden",
            )
        if row is not None and right is ENV and ADMIN in row.who:
            return OperationError(
                f"{name} is for administrators: root, the manager's user, the group nodemgr",
                "ask one of them, or run it on the node",
                "refused",
            )
        known = ", ".join(sorted(one.name for one in self.rows.values() if one.who & right))
        return OperationError(f"unknown verb {name[:40]!r}", f"the verbs are {known}")

    def begin(
        self,
        caller: Speaker,
        name: str,
        given: object,
        reply: Reply,
        in_turn: Callable[[Callable[[], None]], None] = lambda work: work(),
        *,
        has_turn: bool = True,
    ) -> None:
        """Has an order carried out; `reply` gets its answer or OperationError in any case.

        `in_turn`: takes the work after a wait. `has_turn`: work that waits for nothing needs none.
        """

        def here(caller: Speaker, name: str, given: Any, reply: Reply) -> None:
            self.begin_here(caller, name, given, reply, in_turn, has_turn=has_turn)

        try:
            if self._elsewhere(here, caller, name, given, reply):
                return
        except OperationError as error:
            reply(error)
            return
        here(caller, name, given, reply)

    def begin_here(
        self,
        caller: Speaker,
        name: str,
        given: object,
        reply: Reply,
        in_turn: Callable[[Callable[[], None]], None] = lambda work: work(),
        *,
        has_turn: bool = True,
    ) -> None:
        """The same on this node in any case."""
        try:
            row, arguments = self.find(caller, name, given)
        except OperationError as error:
            reply(error)
            return

        def carry_out() -> None:
            answer_to(lambda: self._perform(row, caller, arguments), reply)

        def go_on() -> None:
            in_turn(carry_out)

        needs, node = row.needs, self._daemon.node
        if needs is Needs.STATUS:
            node.when_fresh(lambda: self._views.when_figures(go_on))
        elif needs is Needs.FIGURES:
            self._views.when_figures(go_on)
        elif needs is Needs.AUDIT and caller.right is ENV:
            node.when_audited(go_on, reuse=True)
        elif has_turn:
            carry_out()
        else:
            go_on()

    @staticmethod
    def _perform(row: VerbRow, caller: Speaker, arguments: dict[str, Any]) -> Any:
        try:
            return row.perform(caller, arguments)
        except OperationError as error:
            if not (row.changes and caller.right is Right.ENV_TOKEN and error.code == "not_found"):
                raise
            raise OperationError(  # refused as one that does not exist is
                f"{error}; this token is for environment {caller.env} alone",
                "enter a token of the other environment",
                "forbidden",
            ) from None
