"""A member of a cluster: reports to the head, carries out its words, asks it.

Knows: the frames of the link's page (docs/cluster.md), which event or verb each is. Must not know:
sockets; how a person joins (membership.py).

The head names the user of an assigned job, so a node takes none for a user of the system (an uid
below 1000) unless its own settings name that user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_plugin.messages.form import MessageLine, relayed, stated
from nodemgr.core.model import events
from nodemgr.core.model.entities import UNDER_WAY
from nodemgr.core.model.values import replace
from nodemgr.edge.api.assignment_operations import ACKNOWLEDGE, ASSIGN, AssignmentOperations
from nodemgr.edge.api.verb_table import Speaker, Verbs
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.links.keys import KeyPair
from nodemgr.edge.links.node_link import NodeLink
from nodemgr.edge.links.pace import PACE, Pace
from nodemgr.edge.member import node_summary
from nodemgr.edge.member.asks import Asks, pieces
from nodemgr.edge.member.joined import Joined
from nodemgr.edge.rpc.operation import OperationError, check

REPORT_S = 0.02
"""Several changes at a time are one report."""
SYSTEM_UIDS = 1_000
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
        pace: Pace = PACE,
    ) -> None:
        """`store` keeps a new form of `joined`. `users`: system users whose jobs may run here."""
        self._daemon, self._verbs, self.joined, self._store = daemon, verbs, joined, store
        self._run_dir, self._users = str(run_dir), users
        self._assignments = assignments
        self._answers = node_summary.Answers(daemon.state, joined.head)
        self._number = 0
        self._is_due = False
        self.link = NodeLink(
            daemon.loop, joined.address, joined.head_key, own, self._hello, self._message,
            self._link_changed, pace,
        )  # fmt: skip
        self.asks = Asks(daemon.loop, self.link.send, lambda: self.link.why)
        daemon.informer.subscribe(lambda _cause, _news: self.stir())
        daemon.jobs.on_final.append(lambda _job_id: self.stir())
        self._words: dict[str, Callable[[Any], None]] = {
            "assign": self._assign, "give_back": self._give_back,
            "acknowledge": self._acknowledge, "order": self._order, "answer": self.asks.answered,
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
            **node_summary.summary(state, joined.envs),
            "models": sorted({gpu.name for gpu in state.gpus.values()}),
            "answers": self._answers.every(),
            "version": 1,
        }

    def stir(self) -> None:
        """The head is to hear of a change, soon."""
        if not self._is_due and self.link.is_up:
            self._is_due = True
            self._daemon.loop.call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._is_due = False
        if self.link.is_up:
            self._number += 1
            self.link.send(
                "report",
                number=self._number,
                **node_summary.summary(self._daemon.state, self.joined.envs),
                answers=self._answers.fresh(),
            )

    def _link_changed(self, welcome: Any) -> None:
        if welcome is None:
            stderr_log.say(
                stated(f"the head {self.joined.head} is away: {self.link.why}",
                       "jobs of this node go on")
            )  # fmt: skip
            self.asks.link_changed(is_up=False)
            return
        generation = welcome.get("generation")
        if welcome.get("head") != self.joined.head or not isinstance(generation, int):
            self.link.end(f"the head there is {str(welcome.get('head'))[:80]}")
        elif generation < self.joined.head_generation:
            self.link.end("an old copy of the head is running")
        else:
            self._keep(replace(self.joined, head_generation=generation))
            self.asks.link_changed(is_up=True)
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
            except OperationError as error:  # the head says it again
                self._report_refused(error)

    def _report_refused(self, error: OperationError) -> None:
        stderr_log.say(
            stated(f"a word of the head {self.joined.head} is refused: {error}", "it says it again")
        )

    @property
    def _by(self) -> str:
        return f"head {self.joined.head}"

    def _assign(self, frame: Any) -> None:
        given = check(ASSIGN, {name: frame[name] for name in ASSIGN if name in frame})
        given["environ"] = tuple(
            text.replace(RUN_DIR_MARK, self._run_dir) for text in given["environ"]
        )
        refusal = self._refusal(given, bool(frame.get("refuse")))
        later = self._assignments.take(self._by, str(frame.get("env")), given, refusal)
        later.begin(self._assigned)

    def _refusal(self, given: dict[str, Any], refuse: bool) -> str:
        """Why this node takes the job in no case; empty: it may."""
        if refuse:
            return "the head does not want it any more"
        if given["uid"] < SYSTEM_UIDS and given["user"] not in self._users:
            return f"this node starts no job of the head as {given['user']} (uid {given['uid']})"
        return ""

    def _assigned(self, answer: Any) -> None:
        if isinstance(answer, OperationError):
            self._report_refused(answer)
        self.stir()

    def _give_back(self, frame: Any) -> None:
        row = self._daemon.state.assignments.get(frame.get("key"))
        job = None if row is None else self._daemon.state.jobs.get(row.job_id)
        if job is None or row is None or job.assigned != row.key or row.head != self.joined.head:
            return
        if not (frame.get("if_waiting") and job.state in UNDER_WAY):
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
        def reply(result: Any) -> None:
            for fields in pieces(frame.get("id"), result):
                self.link.send("answer", **fields)

        known: dict[str, Callable[[Any, Callable[[Any], None]], None]] = {
            "log_read": self._log_read, "env_put": self._env_put, "env_drop": self._env_drop,
            "snapshot": lambda _given, reply: self._ask("status", {}, reply),
        }  # fmt: skip
        given, order = frame.get("arguments"), known.get(str(frame.get("verb")))
        if order is None or not isinstance(given, dict):
            reply(
                OperationError(stated("this node does not know the order", "upgrade it"), "usage")
            )
        else:
            order(given, reply)

    def _ask(self, verb: str, given: dict[str, Any], reply: Callable[[Any], None]) -> None:
        self._verbs.begin_here(Speaker.admin(self._by), verb, given, reply)

    def _log_read(self, given: Any, reply: Callable[[Any], None]) -> None:
        row = self._daemon.state.assignments.get(given.get("key"))
        job_id = given.get("job") if row is None else row.job_id
        rest = {name: given[name] for name in ("offset", "wait") if name in given}
        self._ask("job_log_read", {"job": job_id, **rest}, reply)

    def _env_put(self, given: Any, reply: Callable[[Any], None]) -> None:
        env, quota = given.get("env"), dict(given.get("quota") or {})
        if isinstance(quota.get("gpus"), int):
            quota["gpus"] = min(quota["gpus"], len(self._daemon.state.gpus))

        def stored(answer: Any) -> None:
            if not isinstance(answer, OperationError):
                self._keep(replace(self.joined, envs=tuple(sorted({*self.joined.envs, env}))))
                self.stir()
            reply(answer)

        self._ask("quota_set", {"env": env, **quota}, stored)

    def _env_drop(self, given: Any, reply: Callable[[Any], None]) -> None:
        env = given.get("env")

        def dropped(answer: Any) -> None:
            if not isinstance(answer, OperationError) or env not in self._daemon.state.envs:
                left = tuple(one for one in self.joined.envs if one != env)
                self._keep(replace(self.joined, envs=left))
            reply(answer)

        self._ask("quota_rm", {"env": env}, dropped)

    def state_line(self) -> tuple[bool, MessageLine]:
        """For doctor: whether the head is there, and a line."""
        joined = self.joined
        if self.link.is_up:
            return True, relayed(f"joined to {joined.head} at {joined.address} as {joined.node}")
        what = f"the head {joined.head} at {joined.address} is away: {self.link.why}"
        return False, stated(what, "jobs of this node go on; look at the head")
