"""The lease of an elastic task, for its leader: GPUs, offers, recalls, and the words about them.

Knows: the packets of a lease, reconnects, beats. Must not know: workers. A thread speaks with the
manager; the leader's own thread reads events and says words. A word is repeated on each new
connection until the manager has acknowledged it. The leader uses no GPU itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import threading
import time
from typing import Callable, Dict, List, Optional, Set, Tuple, Union

from client_plugin import fields, waiting
from client_plugin.elastic.lease_events import (
    LeasedGpu,
    LeaseEnded,
    LeaseEvent,
    Offered,
    Recalled,
    Rejoined,
    Withdrawn,
)
from client_plugin.elastic.packets import Packet, encode, receive, send
from client_plugin.messages.form import relayed
from client_plugin.ways import locations
from client_plugin.ways.conversation import DENIAL_EXITS
from client_plugin.ways.faults import Exit, Fault

TOKEN_DIGITS = 32
BEAT_S = 1.0
BACKOFF_S = (0.1, 1.0)
"""The first pause before a new connection, and the longest."""
CONNECT_TIMEOUT_S = 5.0
POLL_S = 0.2
"""How often the wait for a lease returns for signals."""
ANSWER_S = 0.5
"""The limit for the answer to a RELEASE or CANCEL."""
PacketFields = Dict[str, Union[int, str, None]]


class Membership:
    """One per leader process. `acquire` makes it."""

    @classmethod
    def acquire(
        cls,
        minimum: int,
        maximum: int,
        *,
        command: List[str],
        memory: Optional[str] = None,
        compute: Optional[str] = None,
    ) -> Membership:
        """Waits for at least `minimum` GPUs, with the line of any wait.

        `memory` (a size such as 8GiB, or bytes, or a range of them) and `compute` (30 or 30%) are
        of each GPU. Raises Fault if the request is refused, KeyboardInterrupt if the user ends the
        wait.
        """
        said = {"NODEMGR_MEMORY": memory, "NODEMGR_COMPUTE": compute}
        wish: PacketFields = {
            **fields.asked({**os.environ, **{name: text for name, text in said.items() if text}}),
            "gpus": minimum, "gpus_max": maximum, "elastic": 1,
            "command": " ".join(command)[:200],
        }  # fmt: skip
        found = cls(_socket_path(), wish)
        try:
            found._await_lease()
        except BaseException:
            found._end("CANCEL")
            raise
        return found

    def __init__(self, path: str, wish: PacketFields) -> None:
        token = os.environ.get("NODEMGR_TASK", "")
        is_token = len(token) == TOKEN_DIGITS and set(token) <= set("0123456789abcdef")
        self.token = token if is_token else os.urandom(TOKEN_DIGITS // 2).hex()
        self._path = path
        self._wish = wish
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._socket: Optional[socket.socket] = None
        self._rid = self._fresh_rid()
        self._rejoin_rid = 0
        """0: no REJOIN was sent."""
        self._lease = ""
        self._place: PacketFields = {}
        """Slot and generation, which a REJOIN names."""
        self._gpus: Dict[str, LeasedGpu] = {}
        self._offered: Set[str] = set()
        self._unheard: Dict[int, Tuple[str, str]] = {}
        """By request id: words that the manager has not acknowledged."""
        self._events: List[LeaseEvent] = []
        self._line = ""
        self._fault: Optional[Fault] = None
        self._is_over = False
        self._ledger: List[int] = []
        """The ledger's files: a restarted manager may have lost them."""
        self._readable, self._wake_leader = os.pipe()
        self._stop, self._wake_thread = os.pipe()
        for descriptor in (self._readable, self._wake_leader, self._stop, self._wake_thread):
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._talk, name="nodemgr-lease", daemon=True)
        self._thread.start()

    # -- the leader's side --

    def gpus(self) -> Tuple[LeasedGpu, ...]:
        """The GPUs of the lease now, recalled ones included until they are left."""
        with self._lock:
            return tuple(sorted(self._gpus.values(), key=lambda gpu: gpu.index))

    def fileno(self) -> int:
        """Readable while `events` has something to return."""
        return self._readable

    def events(self) -> List[LeaseEvent]:
        """Events since the last call."""
        with self._lock:
            _drain(self._readable)
            found, self._events = self._events, []
            return found

    def accepted(self, gpu: str) -> None:
        """A worker runs on this offered GPU."""
        self._say("ACCEPTED", gpu)

    def decline(self, gpu: str) -> None:
        """The task cannot use this offered GPU now. It is offered none for a minute."""
        self._give_back("DECLINED", gpu)

    def left(self, gpu: str) -> None:
        """No process of the task is on this GPU any more."""
        self._give_back("LEFT", gpu)

    def release(self) -> None:
        """Leaves the lease, which ends with its last process."""
        self._end("RELEASE")

    def _give_back(self, word: str, gpu: str) -> None:
        with self._lock:
            if self._gpus.pop(gpu, None) is not None:
                self._offered.discard(gpu)
                self._say(word, gpu)

    def _say(self, word: str, gpu: str) -> None:
        with self._lock:
            rid = self._fresh_rid()
            self._unheard[rid] = (word, gpu)
            self._send(word, {"rid": rid, "task": self.token, "gpu": gpu})

    def _await_lease(self) -> None:
        wait = waiting.Wait()
        outcome = "cancelled"
        try:
            with self._lock:
                while not self._lease and self._fault is None:
                    if self._line:
                        wait.show(self._line)
                    self._changed.wait(POLL_S)
                if self._fault is not None:
                    outcome = ""
                    raise self._fault
                outcome = f"{len(self._gpus)} GPUs granted"
        finally:
            wait.end(outcome)

    def _end(self, verb: str) -> None:
        """Says that it is over, and ends the thread."""
        with self._lock:
            self._is_over = True
            self._send(verb, {"rid": self._rid, "task": self.token if verb == "RELEASE" else None})
        os.write(self._wake_thread, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(ANSWER_S)

    # -- the thread that speaks with the manager --

    def _talk(self) -> None:
        pause_s = BACKOFF_S[0]
        while not self._is_over:
            if self._connect():
                pause_s = BACKOFF_S[0]
                self._listen()
                self._disconnect()
            if not self._is_over:
                select.select([self._stop], [], [], pause_s * random.uniform(0.75, 1.25))
                pause_s = min(2 * pause_s, BACKOFF_S[1])

    def _connect(self) -> bool:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            sock.connect(self._path)
        except OSError as error:
            sock.close()
            self._unreachable(error)
            return False
        sock.setblocking(False)
        with self._lock:
            self._socket = sock
            self._ask()
        return True

    def _ask(self) -> None:
        """The request, or the lease that it has become."""
        if not self._lease:
            self._send("ACQUIRE", {"rid": self._rid, "task": self.token, **self._wish})
            return
        self._rejoin_rid = self._fresh_rid()
        names: PacketFields = {"rid": self._rejoin_rid, "task": self.token, "lease": self._lease}
        wanted = _conf(os.path.dirname(self._path)).get("ledger") == "wanted"
        self._send("REJOIN", {**names, **self._place}, self._ledger if wanted else [])

    def _unreachable(self, error: OSError) -> None:
        with self._lock:
            if self._lease or self._fault is not None:
                return
            line = f"no manager answers on {self._path} ({error.strerror or error})"
            policy = _conf(os.path.dirname(self._path)).get("no_manager", "wait")
            if policy == "wait":
                self._line = line
            else:
                self._refuse(Fault(line, code=Exit.UNREACHABLE))

    def _listen(self) -> None:
        """Packets and beats until the connection is lost."""
        next_beat = time.monotonic() + BEAT_S
        while not self._is_over and self._socket is not None:
            room_s = max(0.0, next_beat - time.monotonic())
            select.select([self._socket.fileno(), self._stop], [], [], room_s)
            try:
                self._take_all()
            except (OSError, ValueError):
                return
            if time.monotonic() >= next_beat:
                self._send("BEAT", {"task": self.token})
                next_beat = time.monotonic() + BEAT_S

    def _take_all(self) -> None:
        """Raises OSError at the end of the connection."""
        while self._socket is not None:
            try:
                packet = receive(self._socket)
            except (BlockingIOError, InterruptedError):
                return
            if packet is None:
                raise ConnectionResetError
            with self._lock:
                handler = _HANDLERS.get(packet.verb)
                if handler is not None:
                    handler(self, packet)
                for descriptor in packet.descriptors:
                    os.close(descriptor)

    def _disconnect(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _send(
        self, verb: str, fields: PacketFields, descriptors: Optional[List[int]] = None
    ) -> None:
        """A packet that cannot be sent is repeated on the next connection, or not needed there."""
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    send(self._socket, encode(verb, fields), descriptors or ())

    def _fresh_rid(self) -> int:
        return random.getrandbits(52)

    # -- packets of the manager; each with the lock held --

    def _on_wait(self, packet: Packet) -> None:
        self._line = packet.fields.get("reason", "")
        self._changed.notify_all()

    def _on_deny(self, packet: Packet) -> None:
        rid, reason = packet.fields.get("rid"), relayed(packet.fields.get("reason", ""))
        if rid == str(self._rid) and not self._lease:
            code = DENIAL_EXITS.get(packet.fields.get("code", ""), Exit.FAILED)
            self._refuse(Fault(reason, code=code))
        elif rid == str(self._rejoin_rid):
            self._lose(reason)
        elif rid is not None and rid.isdigit():
            self._unheard.pop(int(rid), None)

    def _on_grant(self, packet: Packet) -> None:
        """The lease, or its GPUs as they are now: after a change, and after a REJOIN."""
        fields = packet.fields
        is_again = bool(self._lease)
        is_answer = fields.get("rid") == str(self._rejoin_rid)
        if is_again and fields.get("lease") != self._lease:
            return
        self._lease = fields.get("lease", "")
        self._place = {name: fields[name] for name in ("slot", "generation") if name in fields}
        given_back = {gpu for word, gpu in self._unheard.values() if word != "ACCEPTED"}
        rows = zip(fields.get("gpus", "").split(","), fields.get("rows", "").split(","))
        self._gpus = {
            uuid: LeasedGpu(uuid, int(row)) for uuid, row in rows if uuid not in given_back
        }
        self._offered &= set(self._gpus)
        if len(packet.descriptors) >= 2:
            for descriptor in self._ledger:
                os.close(descriptor)
            self._ledger, packet.descriptors[:2] = packet.descriptors[:2], []
        if is_again and is_answer:
            self._notify(Rejoined())
            for rid, (word, gpu) in list(self._unheard.items()):
                self._send(word, {"rid": rid, "task": self.token, "gpu": gpu})
        self._changed.notify_all()

    def _on_offer(self, packet: Packet) -> None:
        """Comes after the GRANT with the GPU, and again on a new connection until accepted."""
        gpu = self._gpus.get(packet.fields.get("gpu", ""))
        if gpu is not None and gpu.uuid not in self._offered:
            self._offered.add(gpu.uuid)
            self._notify(Offered(gpu))

    def _on_recall(self, packet: Packet) -> None:
        fields = packet.fields
        if fields.get("gpu") in self._gpus:
            deadline = time.monotonic() + int(fields.get("recall_ms", "0")) / 1_000
            self._notify(Recalled(fields["gpu"], deadline, fields.get("reason", "")))

    def _on_withdrawn(self, packet: Packet) -> None:
        if packet.fields.get("gpu") in self._gpus:
            self._notify(Withdrawn(packet.fields["gpu"]))

    def _on_fence(self, packet: Packet) -> None:
        lease = packet.fields.get("lease")
        if self._lease and lease == self._lease:
            self._lose(packet.fields.get("reason", ""))
        elif self._lease and lease == "none":
            self._ask()

    def _on_ack(self, packet: Packet) -> None:
        rid = packet.fields.get("rid", "")
        if rid.isdigit():
            self._unheard.pop(int(rid), None)

    def _refuse(self, fault: Fault) -> None:
        self._fault = fault
        self._is_over = True
        self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        self._is_over = True
        self._gpus.clear()
        self._notify(LeaseEnded(reason))

    def _notify(self, event: LeaseEvent) -> None:
        self._events.append(event)
        with contextlib.suppress(BlockingIOError):  # it has enough to read
            os.write(self._wake_leader, b"x")


_HANDLERS: Dict[str, Callable[[Membership, Packet], None]] = {
    "ACK": Membership._on_ack,
    "DENY": Membership._on_deny,
    "FENCE": Membership._on_fence,
    "GRANT": Membership._on_grant,
    "OFFER": Membership._on_offer,
    "RECALL": Membership._on_recall,
    "WAIT": Membership._on_wait,
    "WITHDRAWN": Membership._on_withdrawn,
}


def _socket_path() -> str:
    """Raises Fault outside of an environment, and in one that is reached over UDP."""
    directory = locations.around_us()
    conf = _conf(directory)
    if not conf:
        raise Fault(
            f"{directory}/client.conf cannot be read: this process is in no environment",
            "start it by `nodemgr run --elastic`",
            code=Exit.UNREACHABLE,
        )
    address = conf.get("address", "")
    if not address.startswith("unix:"):
        raise Fault(
            f"an elastic task needs the node's UNIX socket; the manager is at {address}",
            "run it on the node itself",
            code=Exit.UNREACHABLE,
        )
    return os.path.join(directory, address[len("unix:") :])


def _conf(directory: str) -> Dict[str, str]:
    try:
        return locations.read_conf(directory)
    except OSError:
        return {}


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4_096):
            pass
    except BlockingIOError:
        pass
