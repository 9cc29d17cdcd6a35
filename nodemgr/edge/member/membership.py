"""Joining a cluster and leaving it, and the orders that go to its head meanwhile.

Knows: what is stored of a joined node, when joining is refused. Must not know: frames, the head's
rules.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any

from nodemgr.core.model.entities import JobState
from nodemgr.edge.api.assignment_operations import AssignmentOperations
from nodemgr.edge.api.session_hosts import NODE, LaunchHosts
from nodemgr.edge.api.verb_table import ADMIN, Begin, Speaker, Verbs, verb
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.kernel.processes import user_name
from nodemgr.edge.links import keys
from nodemgr.edge.links.joining import Joining
from nodemgr.edge.links.pace import PACE
from nodemgr.edge.member.cluster_member import RUN_DIR_MARK, ClusterMember
from nodemgr.edge.member.delegation import OF_ADMINS, Delegation, ids_of, is_clusters
from nodemgr.edge.member.joined import META, Joined
from nodemgr.edge.member.pool_gate import PoolGate
from nodemgr.edge.rpc.operation import Argument, Later, OperationError, Reply, env_name, flag, text
from nodemgr.edge.setup.settings import Settings, SettingsError, parse_address

KEY_FILE = "cluster.key"
GENERATION_META = "cluster.generation"
JOIN = {
    "address": Argument(text, required=True),
    "word": Argument(text, required=True),
    "node": Argument(env_name, required=True),
    "take_over": Argument(flag),
    "drain": Argument(flag),
}


class ClusterMembership:
    """The verbs, and the member while there is one."""

    def __init__(
        self,
        daemon: Daemon,
        assignments: AssignmentOperations,
        verbs: Callable[[], Verbs],
        hosts: LaunchHosts,
        settings: Settings,
    ) -> None:
        self._daemon, self._assignments, self._verbs = daemon, assignments, verbs
        self._hosts, self._settings = hosts, settings
        self._member: ClusterMember | None = None
        daemon.informer.subscribe(lambda _cause, _news: self._stir())
        daemon.jobs.on_final.append(lambda _job_id: self._stir())
        self._delegation: Delegation | None = None
        self.gate = PoolGate(daemon, settings.slurm_pool, self._stir, self._away)

    def go_on(self) -> None:
        """Connects a node that is joined."""
        stored = self._daemon.journal.meta().get(META)
        if stored is not None:
            self._begin(Joined.of_text(stored))
        self.gate.begin()

    def _away(self) -> str:
        return "this node is in no cluster" if self._member is None else self._member.link.why

    def _stir(self) -> None:
        if self._member is not None:
            self._member.stir()

    def close(self) -> None:
        self.gate.close()
        self._end()

    def _end(self) -> None:
        if self._member is not None:
            self._member.close()
        self._member = self._delegation = None

    def _begin(self, joined: Joined) -> None:
        daemon, settings = self._daemon, self._settings
        member = self._member = ClusterMember(
            daemon, self._verbs(), self._assignments, joined,
            keys.load(settings.state_dir / KEY_FILE), self._store, settings.run_dir,
            settings.cluster_users, self.gate,
        )  # fmt: skip
        self._delegation = Delegation(
            daemon.state, joined.head, joined.node, lambda: member.joined.envs, self._ask,
            lambda: member.link.why,
        )  # fmt: skip

    def _store(self, joined: Joined) -> None:
        self._daemon.journal.remember(META, joined.text())

    # -- orders that are the head's --

    def elsewhere(self, begin: Begin, who: Speaker, name: str, given: object, reply: Reply) -> bool:
        """See Elsewhere. Raises OperationError."""
        if not isinstance(given, dict):
            return False
        if name == "doctor" and who.right is ADMIN and self._member is not None:
            begin(who, name, given, self._with_check(self._member, reply))
            return True
        if self._delegation is not None:
            return self._delegation.take(begin, who, name, given, reply)
        given.pop("here", None)
        if (name in OF_ADMINS and who.right is ADMIN) or any(map(is_clusters, ids_of(given))):
            what = "this is an order for the head of a cluster, and this node is in none"
            raise OperationError(what, "`nodemgr node join HEAD WORD`", "not_found")
        return False

    @staticmethod
    def _with_check(member: ClusterMember, reply: Reply) -> Reply:
        """Adds the link to doctor's rows."""

        def answered(answer: Any) -> None:
            if isinstance(answer, dict):
                ok, detail = member.state_line()
                cure = "start the head, or look at its address and the network between"
                row = {"name": "cluster", "ok": ok, "detail": detail, "cure": cure}
                answer = {**answer, "checks": [*answer["checks"], row]}
            reply(answer)

        return answered

    def _ask(self, who: Speaker, name: str, given: dict[str, Any], reply: Reply) -> None:
        assert self._member is not None
        session, own = who.session, os.geteuid()
        by = {"uid": own, "gid": os.getegid(), "user": _own_user() or who.name}
        if isinstance(session, Connection):
            identity = session.identity
            by = {"uid": identity.uid, "gid": identity.gid, "user": session.user}
        elif session is not None:
            raise OperationError(
                "an environment over UDP asks this node alone", "ask on the node", "refused"
            )
        if name in ("cluster_submit", "cluster_submit_many"):
            given = self._portable(who, name.replace("cluster", "job"), given)
        self._member.asks.ask(
            {"verb": name, "arguments": given, "by": by, "env": who.env},
            reply,
            lambda: session is None or self._daemon.hub.knows(session),
        )

    def _portable(self, who: Speaker, verb: str, given: dict[str, Any]) -> dict[str, Any]:
        """A submission as any node can start it. Raises OperationError."""
        rest = {key: value for key, value in given.items() if key != "after"}
        self._verbs().find(who, verb, rest)
        if self._hosts.of(who.session) != NODE:
            what = "a job of a container runs where its container is"
            raise OperationError(what, "`nodemgr submit --here`", "refused")
        run_dir = str(self._settings.run_dir)
        environ = [text.replace(run_dir, RUN_DIR_MARK) for text in given["environ"]]
        return {**given, "environ": environ}

    # -- joining and leaving --

    @verb("node_join", ADMIN, JOIN, changes=True)
    def join(self, who: Speaker, given: dict[str, Any]) -> Later:
        try:
            parse_address(given["address"])
            word = keys.read_word(given["word"])
        except (SettingsError, ValueError):
            what = "this is not the address of a head and a word of it"
            raise OperationError(what, "copy both from `nodemgr head word`") from None
        self._check_empty(with_jobs=given.get("drain", False))
        own = keys.load(self._settings.state_dir / KEY_FILE)
        said = {
            "node": given["node"], "key": own.public, "envs": sorted(self._daemon.state.envs),
            "take_over": given.get("take_over", False), "user": _own_user(),
        }  # fmt: skip

        def begin(reply: Reply) -> None:
            Joining(
                self._daemon.loop, given["address"], word, said,
                lambda answer: reply(self._joined(given, word, answer)), PACE,
            )  # fmt: skip

        return Later(begin)

    def _check_empty(self, *, with_jobs: bool) -> None:
        if self._member is not None:
            what = f"this node is joined to {self._member.joined.head}"
            raise OperationError(what, "`nodemgr node leave` first", "refused")
        state = self._daemon.state
        waiting = [job for job in state.jobs.values() if job.state is not JobState.HELD]
        if waiting and not with_jobs:
            what = f"{len(waiting)} jobs wait or run on this node"
            remedy = "join when they have ended, or with --drain: they stay its own"
            raise OperationError(what, remedy, "refused")

    def _joined(self, given: dict[str, Any], word: keys.OneTimeWord, answer: Any) -> Any:
        if isinstance(answer, str) or answer.get("error"):
            why = answer if isinstance(answer, str) else str(answer["error"])[:500]
            what = f"the head at {given['address']} did not take this node: {why}"
            return OperationError(what, "`nodemgr head word` makes a new word", "refused")
        if self._member is not None:
            return OperationError("this node was joined meanwhile", "nothing", "refused")
        head, generation = answer.get("head"), answer.get("generation")
        if not isinstance(head, str) or not isinstance(generation, int):
            what = f"the head at {given['address']} does not say who it is"
            return OperationError(what, "upgrade it", "refused")
        joined = Joined(
            given["address"], head, word.head_key, generation, given["node"], self._generation()
        )
        self._store(joined)
        self._begin(joined)
        return {"head": joined.head, "node": joined.node}

    def _generation(self) -> str:
        """The name of this store, made once."""
        journal = self._daemon.journal
        found = journal.meta().get(GENERATION_META)
        if found is None:
            found = secrets.token_hex(8)
            journal.remember(GENERATION_META, found)
        return found

    @verb("node_leave", ADMIN, {"force": Argument(flag)}, changes=True)
    def leave(self, who: Speaker, given: dict[str, Any]) -> Later | dict[str, Any]:
        """`force`: also with jobs of the cluster, and where the head does not answer."""
        member = self._member
        if member is None:
            raise OperationError("this node is in no cluster", "nothing", "refused")
        if given.get("force"):
            return self._left(member)
        state = self._daemon.state
        if any(job.assigned for job in state.jobs.values()):
            what = "jobs of the cluster wait or run on this node"
            remedy = f"`nodemgr node drain {member.joined.node}`, and leave when they have ended"
            raise OperationError(what, remedy, "refused")

        def begin(reply: Reply) -> None:
            def removed(answer: Any) -> None:
                reply(answer if isinstance(answer, OperationError) else self._left(member))

            self._ask(who, "node_remove", {"node": member.joined.node}, removed)

        return Later(begin)

    def _left(self, member: ClusterMember) -> dict[str, Any]:
        """The environments stay, and are the node's own from now on."""
        self._daemon.journal.remember(META, None)
        self._end()
        return {"head": member.joined.head, "node": member.joined.node}


def _own_user() -> str:
    """The user of a manager that is not root's, for whom alone it may vouch; of root's: empty."""
    own = os.geteuid()
    return user_name(own) if own else ""
