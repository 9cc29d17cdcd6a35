"""A member of a cluster: reports to the head, carries out its words, asks it.

Knows: the frames of the link's page (docs/cluster.md), which event or verb each is. Must not know:
sockets; how a person joins (membership.py).

The head names the user of an assigned job, so a node takes none for a user of the system (an uid
below 1000) unless its own settings name that user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from client_plugin.messages.form import relayed, stated
from nodemgr.core.model import events
from nodemgr.core.model.entities import UNDER_WAY
from nodemgr.core.model.values import replace
from nodemgr.edge.api.assignment_operations import ACKNOWLEDGE, ASSIGN, AssignmentOperations
from nodemgr.edge.api.verb_table import ADMIN, ENV, Speaker, Verbs
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.links.frames import VERSION
from nodemgr.edge.links.keys import KeyPair
from nodemgr.edge.links.node_link import NodeLink
from nodemgr.edge.links.pace import PACE, Pace
from nodemgr.edge.member import node_summary
from nodemgr.edge.member.asks import Asks
from nodemgr.edge.member.joined import Joined
from nodemgr.edge.member.pool_gate import PoolGate
from nodemgr.edge.rpc.operation import (
    Argument,
    OperationError,
    check,
    check_argument,
    env_name,
    flag,
    integer,
    text,
)
from nodemgr.edge.rpc.pieces import pieces

REPORT_S = 0.02
"""Several changes at a time are one report."""
SYSTEM_UIDS, MAX_PILOTS = 1_000, 100
GIVE_BACK = {"key": Argument(text, required=True), "if_waiting": Argument(flag)}


def _numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_PILOTS:
        raise OperationError(f"must be a list of at most {MAX_PILOTS} numbers")
    return tuple(map(integer(1, 2**62), value))


PILOTS = {"numbers": Argument(_numbers, required=True)}
ORDER_ID = {"id": Argument(integer(0, 2**62), required=True)}
KEYED = ("key", "number")
UNREAD = {"user": "?", "uid": 0, "gid": 0, "argv": ["?"], "cwd": "/", "environ": []}
"""The rest of an assignment of which the key can be read alone."""
RUN_DIR_MARK = "@NODEMGR_RUN_DIR@"
"""In the variables of a cluster's job: the run directory of the node that starts it."""


class ClusterMember:
    """This node, while it is joined."""

    def __init__(
        self,
        daemon: Daemon,
        verbs: Verbs,
        assignments: AssignmentOperations,
        joined: Joined,
        own: KeyPair,
        store: Callable[[Joined], None],
        run_dir: Path,
        users: tuple[str, ...] = (),
        gate: PoolGate | None = None,
        pace: Pace = PACE,
    ) -> None:
        """`store` keeps a new form of `joined`. `users`: system users whose jobs may run here."""
        self._daemon, self._verbs, self.joined, self._store = daemon, verbs, joined, store
        self._run_dir, self._users = str(run_dir), users
        self._assignments, self._gate = assignments, gate
        self._answers = node_summary.Answers(daemon.state, joined.head)
        self._number = self.refused = 0
        self._is_due = False
        self.link = NodeLink(
            daemon.loop, joined.address, joined.head_key, own, self._hello, self._message,
            self._link_changed, pace,
        )  # fmt: skip
        self.asks = Asks(daemon.loop, self.link.send, lambda: self.link.why)
        self._words: dict[str, Callable[[Any], None]] = {
            "assign": self._assign, "give_back": self._give_back,
            "acknowledge": self._acknowledge, "order": self._order, "answer": self.asks.answered,
            "pool_return": self._pool_return, "pool_pilots": self._pool_pilots,
        }  # fmt: skip

    def close(self) -> None:
        self.link.close()

    # -- to the head --

    def _hello(self) -> dict[str, Any]:
        state, joined = self._daemon.state, self.joined
        self._number = 0
        return {
            "name": joined.node,
            "generation": joined.generation,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "below": node_summary.below(state, joined.head),
            **self._facts(),
            "models": sorted({gpu.name for gpu in state.gpus.values()}),
            "answers": self._answers.every(),
            "version": VERSION,
            "wall_ns": self._daemon.clock.wall_ns(),
        }

    def _facts(self) -> dict[str, Any]:
        state, envs = self._daemon.state, self.joined.envs
        return {
            **node_summary.summary(state, envs),
            **node_summary.shares(state, envs, self.joined.head),
            **({} if self._gate is None else self._gate.facts()),
        }

    def _pool_return(self, frame: Any) -> None:
        if self._gate is not None:
            self._gate.return_node(frame.get("pilot"))

    def _pool_pilots(self, frame: Any) -> None:
        if self._gate is not None:
            self._gate.expect(_checked(PILOTS, frame)["numbers"])

    def stir(self) -> None:
        """The head is to hear of a change, soon."""
        if not self._is_due and self.link.is_up:
            self._is_due = True
            self._daemon.loop.call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._is_due = False
        if self.link.is_up:
            self._number += 1
            answers = self._answers.fresh(node_summary.MAX_TOLD)
            self.link.send(
                "report",
                number=self._number,
                **self._facts(),
                answers=answers,
            )
            if len(answers) == node_summary.MAX_TOLD:
                self.stir()

    def _link_changed(self, welcome: Any) -> None:
        if welcome is None:
            stderr_log.say(
                f"the head {self.joined.head} is away: {self.link.why}", "jobs of this node go on"
            )  # fmt: skip
            self.asks.link_changed()
            return
        generation = welcome.get("generation")
        if welcome.get("head") != self.joined.head or not isinstance(generation, int):
            self.link.end(f"the head there is {str(welcome.get('head'))[:80]}")
        elif generation < self.joined.head_generation:
            self.link.end("an old copy of the head is running")
        else:
            self._keep(replace(self.joined, head_generation=generation))
            self.asks.link_changed()
            self.stir()

    def _keep(self, joined: Joined) -> None:
        if joined != self.joined:
            self.joined = joined
            self._store(joined)

    # -- from the head --

    def _message(self, frame: Any) -> None:
        word = self._words.get(frame["t"])
        if word is not None:
            try:
                word(frame)
            except OperationError as error:
                self._report_refused(error)

    def _report_refused(self, error: OperationError) -> None:
        """The head may say it again for ever: a line at the 1st, 2nd, 4th, 8th... time."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            head, count = self.joined.head, self.refused
            stderr_log.say(f"{count} words of the head {head} were refused, the last: {error}")

    @property
    def _by(self) -> str:
        return f"head {self.joined.head}"

    def _assign(self, frame: Any) -> None:
        """A job that this node cannot read has an answer, too: the head gives it to another."""
        given, env = {name: frame[name] for name in ASSIGN if name in frame}, frame.get("env")
        try:
            check_argument("env", env_name, env)
            given = check(ASSIGN, given)
            given["environ"] = tuple(
                text.replace(RUN_DIR_MARK, self._run_dir) for text in given["environ"]
            )
            refusal = self._refusal(given, bool(frame.get("refuse")))
            later = self._assignments.take(self._by, env, given, refusal)
        except OperationError as error:
            if error.code == "busy":
                raise
            said = {**UNREAD, **{name: given[name] for name in KEYED if name in given}}
            why = f"this node cannot read the job: {error}"
            known = "?" if error.argument == "env" else env
            later = self._assignments.take(self._by, known, check(ASSIGN, said), why)
        later.begin(self._assigned)

    def _refusal(self, given: dict[str, Any], refuse: bool) -> str:
        """Why this node takes the job in no case; empty: it may."""
        if refuse:
            return "the head does not want it any more"
        if given["uid"] < SYSTEM_UIDS and given["user"] not in self._users:
            who = f"{given['user']} (uid {given['uid']})"
            return f"this node starts no job of the head as {who}: its cluster_users do not name it"
        return ""

    def _assigned(self, answer: Any) -> None:
        if isinstance(answer, OperationError):
            self._report_refused(answer)
        self.stir()

    def _give_back(self, frame: Any) -> None:
        said = _checked(GIVE_BACK, frame)
        row = self._daemon.state.assignments.get(said["key"])
        job = None if row is None else self._daemon.state.jobs.get(row.job_id)
        if job is None or row is None or job.assigned != row.key or row.head != self.joined.head:
            return
        if not (said.get("if_waiting") and job.state in UNDER_WAY):
            wall_ns = self._daemon.clock.wall_ns()
            self._daemon.submit(events.WithdrawJob(job.job_id, self._by, wall_ns))
            self.stir()

    def _acknowledge(self, frame: Any) -> None:
        said = {"head": self.joined.head, "keys": frame.get("keys"), "below": frame.get("below")}
        given = check(ACKNOWLEDGE, said)
        wall_ns = self._daemon.clock.wall_ns()
        self._daemon.submit(
            events.AcknowledgeEnds(self.joined.head, given["keys"], given["below"], wall_ns)
        )

    # -- orders of the head --

    def _order(self, frame: Any) -> None:
        number = _checked(ORDER_ID, frame)["id"]

        def reply(result: Any) -> None:
            for fields in pieces(number, result):
                self.link.send("answer", **fields)

        known: dict[str, Callable[[Any, Callable[[Any], None]], None]] = {
            "log_read": self._log_read, "env_put": self._env_put, "env_only": self._env_only,
            "snapshot": lambda _given, reply: self._ask("status", {}, reply),
            "snapshot_env": self._snapshot_env,
        }  # fmt: skip
        given, order = frame.get("arguments"), known.get(str(frame.get("verb")))
        if order is None or not isinstance(given, dict):
            reply(OperationError("this node does not know the order", "upgrade it"))
        else:
            order(given, reply)

    def _ask(self, verb: str, given: dict[str, Any], reply: Callable[[Any], None]) -> None:
        self._verbs.begin_here(Speaker(ADMIN, self._by, self._by, None), verb, given, reply)

    def _snapshot_env(self, given: Any, reply: Callable[[Any], None]) -> None:
        """A user's part. (Without a quota here there is none.)"""
        env = str(given.get("env"))
        if env not in self._daemon.state.envs:
            reply({"gpus": [], "tasks": []})
        else:
            self._verbs.begin_here(Speaker(ENV, self._by, self._by, env), "status", {}, reply)

    def _log_read(self, given: Any, reply: Callable[[Any], None]) -> None:
        row = self._daemon.state.assignments.get(str(given.get("key")))
        job_id = given.get("job") if row is None else row.job_id
        rest = {name: given[name] for name in ("offset", "wait") if name in given}
        self._ask("job_log_read", {"job": job_id, **rest}, reply)

    def _env_put(self, given: Any, reply: Callable[[Any], None]) -> None:
        env, quota = str(given.get("env")), given.get("quota")
        if not isinstance(quota, dict):
            reply(OperationError("a quota is an object", "upgrade the head"))
            return
        if isinstance(quota.get("gpus"), int):
            quota["gpus"] = min(quota["gpus"], len(self._daemon.state.gpus))

        def stored(answer: Any) -> None:
            if not isinstance(answer, OperationError):
                self._keep(replace(self.joined, envs=tuple(sorted({*self.joined.envs, env}))))
                self.stir()
            reply(answer)

        self._ask("quota_set", {"env": env, **quota}, stored)

    def _env_only(self, given: Any, reply: Callable[[Any], None]) -> None:
        """Removes the cluster's other environments; with tasks one stays, and is refused."""
        named, left = given.get("envs"), list[OperationError]()
        gone = [env for env in self.joined.envs if env not in named]
        waits = len(gone)

        def dropped(env: str, answer: Any) -> None:
            nonlocal waits
            waits -= 1
            if isinstance(answer, OperationError) and env in self._daemon.state.envs:
                left.append(answer)
            else:
                envs = tuple(one for one in self.joined.envs if one != env)
                self._keep(replace(self.joined, envs=envs))
            if not waits:
                reply(left[0] if left else {"envs": list(self.joined.envs)})

        if not gone:
            reply({"envs": list(self.joined.envs)})
        for env in gone:
            self._ask("quota_rm", {"env": env}, partial(dropped, env))

    def state_line(self) -> tuple[bool, str]:
        """For doctor: whether the head is there, and a line."""
        joined = self.joined
        if self.link.is_up:
            return True, relayed(f"joined to {joined.head} at {joined.address} as {joined.node}")
        what = f"the head {joined.head} at {joined.address} is away: {self.link.why}"
        return False, stated(what, "jobs of this node go on; look at the head")


def _checked(arguments: Mapping[str, Argument], frame: Any) -> dict[str, Any]:
    """A word's own fields; those of a later version are left out. Raises OperationError."""
    return check(arguments, {name: frame[name] for name in arguments if name in frame})
