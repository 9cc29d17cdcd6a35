"""The sessions of nodes with a head: frames to the engine, relayed orders to the verbs, words.

Knows: the kinds of frames, what a node vouches for. Must not know: sockets, decisions.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from nodemgr.core.cluster import events
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.links import keys
from nodemgr.edge.links.frames import Frame
from nodemgr.edge.rpc.operation import OperationError, Reply
from nodemgr.edge.rpc.pieces import pieces
from nodemgr.head import node_words
from nodemgr.head.engine import HeadEngine, Links
from nodemgr.head.node_orders import NodeOrders
from nodemgr.head.node_words import BadFrame
from nodemgr.head.submissions import Who
from nodemgr.head.verbs import HeadVerbs
from nodemgr.messages import head as messages
from nodemgr.paths import is_env_name

WORD_NS = 3_600 * 1_000_000_000
"""How long a word may be used, and its answer be asked for again."""
MAX_ID = 2**32 - 2


class NodeSessions:
    """HeadEvents of edge/links, and the verbs about keys."""

    def __init__(
        self,
        engine: HeadEngine,
        clock: Clock,
        orders: NodeOrders,
        verbs: HeadVerbs,
        links: Callable[[], Links | None],
        own_public: str,
    ) -> None:
        self._engine, self._clock, self._orders, self._verbs = engine, clock, orders, verbs
        self._links, self._own_public = links, own_public
        self.bad: collections.Counter[str] = collections.Counter()
        """By node, the messages that have another form."""
        self._whole: set[str] = set()
        """Nodes that have been named as such that report no shares."""

    # -- joining --

    def of_admin(self, name: str, verb: str, given: dict[str, Any], reply: Reply) -> None:
        """An order on the head's own socket. A word is made there alone: it is a secret."""
        if verb != "node_word":
            self._verbs.of_admin(name, verb, given, reply)
            return
        node = given.get("node")
        user = given.get("user") or ""
        if not isinstance(node, str) or not is_env_name(node) or not isinstance(user, str):
            reply(OperationError("the name of a node is no name", "e.g. gn1", "usage"))
            return
        word = keys.new_word(self._own_public)
        expires_ns = self._clock.monotonic_ns() + WORD_NS
        if self._engine.happens(events.AddWord(word.pair.public, node, expires_ns, user)) is None:
            fault = messages.STORE_FAILS(fault=self._engine.store_fault)
            reply(OperationError(fault, code="store"))
            return
        reply({"node": node, "word": word.text, "expires_seconds": WORD_NS // 10**9})

    def is_word(self, public: str) -> bool:
        word = self._engine.state.words.get(public)
        return word is not None and word.expires_ns > self._clock.monotonic_ns()

    def joined(self, word: str, node: str, key: str, said: Frame) -> dict[str, Any]:
        state = self._engine.state
        row, head = state.words.get(word), state.counters[""]
        if row is None or not self.is_word(word):
            return {"error": "the word is not known or has expired: nodemgr head word makes one"}
        is_lent = row.node.startswith("@")  # a pilot's word
        known = state.nodes.get(node)
        if is_lent and not (is_env_name(node) and (known is None or known.pool is not None)):
            return {"error": f"{node} is a node of the cluster that Slurm does not lend"}
        if row.node != node and not is_lent:
            return {"error": f"the word is for {row.node}: join as that, or ask for one for {node}"}
        if row.used_by and row.used_by != key:
            return {"error": "the word was used: nodemgr head word makes another"}
        named = said.get("envs", [])
        envs = {env for env in named if isinstance(env, str)} if isinstance(named, list) else set()
        if (both := sorted(envs & set(state.envs))) and said.get("take_over") is not True:
            return {
                "error": f"the cluster has {', '.join(both[:10])} too: rename them on {node}, or "
                "join with --take-over"
            }
        if row.used_by != key:
            links = self._links()
            if links is not None and node in state.nodes:
                links.forget(node)  # it has another key from now on
            own = said.get("user")
            user = row.user or (own[:256] if isinstance(own, str) else "")
            if self._engine.happens(events.AddNode(node, key, word, user, is_lent)) is None:
                return {"error": messages.STORE_FAILS(fault=self._engine.store_fault)}
            stderr_log.say(f"{node} has joined the cluster")
        return {"head": head.name, "generation": head.generation}

    # -- a session --

    def synced(self, node: str, session: int, said: Frame) -> None:
        try:
            event = node_words.synced(node, session, said)
        except BadFrame as error:
            self._is_bad(node, error)
            return
        self._orders.silent(node)
        self._engine.hears_time(node, said.get("wall_ns"))
        self._engine.hears(event)
        if event.shares is None and node not in self._whole:
            self._whole.add(node)
            stderr_log.say(
                f"{node} does not report the shares of its GPUs: jobs get whole GPUs there",
                f"upgrade {node}",
            )
        if node in self._engine.state.sessions:
            self._orders.synced(node)

    def message(self, node: str, session: int, said: Frame) -> None:
        try:
            match said.get("t"):
                case "report":
                    self._engine.hears(node_words.report(node, session, said))
                case "ask":
                    self._ask(node, said)
                case "answer":
                    self._orders.answered(node, said)
                case _:
                    pass  # of a later version
        except BadFrame as error:
            self._is_bad(node, error)

    def silent(self, node: str, session: int) -> None:
        self._engine.silent(node, session)
        self._orders.silent(node)

    def _is_bad(self, node: str, error: BadFrame) -> None:
        """A line at the 1st, 2nd, 4th, 8th... time."""
        self.bad[node] += 1
        if (count := self.bad[node]) & (count - 1) == 0:
            stderr_log.say(
                f"{count} messages of {node} were left out: the last has no {error} of the right "
                "form",
                f"upgrade the head first, then {node}",
            )

    # -- relayed orders --

    def _ask(self, node: str, said: Frame) -> None:
        number, by, env = said.get("id"), said.get("by"), said.get("env")
        if not isinstance(number, int) or not isinstance(by, dict):
            raise BadFrame("id or by")
        uid, gid, user = by.get("uid"), by.get("gid"), by.get("user")
        if not (_is_id(uid) and _is_id(gid) and isinstance(user, str) and 0 < len(user) <= 256):
            raise BadFrame("by")
        if env is not None and not (isinstance(env, str) and is_env_name(env)):
            raise BadFrame("env")
        who = Who(user, int(uid), int(gid), env)  # type: ignore[arg-type]
        answer = partial(self._answer, node, number)
        row = self._engine.state.nodes[node]
        leaves = (said.get("verb"), said.get("arguments")) == ("node_remove", {"node": node})
        if row.user and env is None and not leaves:  # of its own manager, where it has one
            named = [one for one in self._engine.state.envs if self._names(one, row.user)]
            env = named[0] if len(named) == 1 else None
            who = who._replace(env=env)
        if row.user and not leaves and (user != row.user or not self._names(env, user)):
            what = f"{node} is run by {row.user}, and may ask for {row.user} alone"
            remedy = (
                "ask in an environment whose quota names that user (at the head: nodemgr quota set "
                f"ENV --cluster --user {row.user})"
            )
            answer(OperationError(what, remedy, "forbidden"))
            return
        self._verbs.asked(who, said.get("verb"), said.get("arguments", {}), answer)

    def _names(self, env: str | None, user: str) -> bool:
        row = self._engine.state.envs.get(env or "")
        return row is not None and user in json.loads(row.quota).get("users", ())

    def _answer(self, node: str, number: int, answer: Any) -> None:
        """A node that is gone asks again."""
        links = self._links()
        if links is None:
            return
        for fields in pieces(number, answer):
            links.say(node, "answer", **fields)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ID
