"""The same job over UDP, through a network that loses, repeats and reorders packets.

The client is the real one in C.
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.ways.faults import Fault
from tests.node.programs import finish, said
from tests.support.limits import until
from tests.support.manager import Manager

GIB = 2**30
Make = Callable[..., Manager]
QUICK_BEAT_S = 0.1
QUICK = {"NODEMGR_BEAT_MS": "100", "NODEMGR_TIMEOUT_MS": "3000"}


class LossyNetwork:
    """Stands between clients and the manager; what it does to each packet comes from a seed."""

    def __init__(
        self, manager: tuple[str, int], seed: int, loss: float, repeat: float, reorder: float
    ) -> None:
        self._chance = random.Random(seed)
        self._manager = manager
        self._rates = (loss, repeat, reorder)
        self._front = self._socket()
        self.address: tuple[str, int] = self._front.getsockname()
        self._backs: dict[tuple[str, int], socket.socket] = {}
        self._late: list[tuple[socket.socket, bytes, tuple[str, int]]] = []
        self._closing = threading.Event()
        self.lost = 0
        self.seen: list[bytes] = []  # what clients sent, as it was
        self._threads = [threading.Thread(target=self._upwards, daemon=True)]
        self._threads[0].start()

    @staticmethod
    def _socket() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.05)
        return sock

    def _upwards(self) -> None:
        while not self._closing.is_set():
            try:
                packet, client = self._front.recvfrom(2_000)
            except TimeoutError:
                continue
            self.seen.append(packet)
            if client not in self._backs:
                self._backs[client] = self._socket()
                self._threads.append(
                    threading.Thread(target=self._downwards, args=(client,), daemon=True)
                )
                self._threads[-1].start()
            self._carry(self._backs[client], packet, self._manager)

    def _downwards(self, client: tuple[str, int]) -> None:
        while not self._closing.is_set():
            try:
                packet = self._backs[client].recv(2_000)
            except (TimeoutError, ConnectionError):
                continue
            self._carry(self._front, packet, client)

    def _carry(self, sock: socket.socket, packet: bytes, to: tuple[str, int]) -> None:
        loss, repeat, reorder = self._rates
        dice = self._chance.random()
        if dice < loss:
            self.lost += 1
            return
        if dice < loss + reorder:
            self._late.append((sock, packet, to))
            return
        sock.sendto(packet, to)
        if dice > 1 - repeat:
            sock.sendto(packet, to)
        while self._late:
            late_sock, late_packet, late_to = self._late.pop()
            late_sock.sendto(late_packet, late_to)

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        for sock in (self._front, *self._backs.values()):
            sock.close()


class Remote:
    """An env on another machine: a copy of its directory, an address through the network."""

    def __init__(self, manager: Manager, env: str, network: LossyNetwork | None = None) -> None:
        self._manager = manager
        self.directory = manager.directory / f"remote-{env}"
        shutil.copytree(manager.state_dir / "keys" / env, self.directory)
        if network is not None:
            conf = self.directory / "client.conf"
            lines = [
                line for line in conf.read_text().splitlines() if not line.startswith("address=")
            ]
            conf.write_text(
                "\n".join([*lines, f"address=udp:{network.address[0]}:{network.address[1]}"]) + "\n"
            )

    def hold(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        return self._manager.hold(
            "remote", *options, NODEMGR_ENV_DIR=str(self.directory), **variables
        )


@pytest.fixture
def node(make_manager: Make) -> Manager:
    port = _free_port()
    manager = make_manager(
        simulate="2x8GiB", options=["--udp", f"127.0.0.1:{port}"], environment=QUICK
    )
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    manager.quota("bob", 2)
    return manager


def _free_port() -> int:
    """The same after a restart of the manager, as an administrator would say it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def network(node: Manager) -> Iterator[LossyNetwork]:
    host, port = node.status()["manager"]["udp"].rsplit(":", 1)
    network = LossyNetwork((host, int(port)), seed=20_261_121, loss=0.15, repeat=0.2, reorder=0.1)
    yield network
    network.close()


def test_a_lease_over_a_bad_network_and_its_end(node: Manager, network: LossyNetwork) -> None:
    events = node.events(since=None)
    program = Remote(node, "alice", network).hold("-b", str(GIB))
    assert said(program)["error"] is None
    (task,) = node.status()["tasks"]
    assert (task["transports"], task["pids"]) == (["udp"], [])
    assert finish(program)[0] == 0
    # its RELEASE may be lost as well: then it falls silent
    events.expect("task.ended", task=task["id"])
    assert node.status()["tasks"] == []


def test_a_whole_life_played_again_changes_nothing(node: Manager, network: LossyNetwork) -> None:
    """A listener repeats all of it, from another place: no lease is asked for, none ended.

    Each packet is counted.
    """
    events = node.events(since=None)
    program = Remote(node, "alice", network).hold("-b", str(GIB))
    said(program)
    heard = list(network.seen)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        host, port = node.status()["manager"]["udp"].rsplit(":", 1)
        for packet in heard:
            stranger.sendto(packet, (host, int(port)))
        await_counted(
            node,
            "packets_replayed",
            sum(b" HELLO" not in packet.split(b"\n")[0] for packet in heard),
        )
        (task,) = node.status()["tasks"]
        assert finish(program) == (0, "")
        events.expect("task.ended", task=task["id"])
        for packet in network.seen:
            stranger.sendto(packet, (host, int(port)))
        await_counted(node, "packets_replayed", len(heard))
    assert node.status()["tasks"] == []
    assert node.status()["queue"] == []


def await_counted(node: Manager, counter: str, least: int) -> None:
    until(lambda: node.status()["counters"][counter] >= least, lambda: node.status()["counters"])


def await_beat(node: Manager, least_s: int = 0, most_s: int = 60) -> None:
    """Waits until the last beat of the one task is between these ages."""
    until(
        lambda: least_s <= node.status()["tasks"][0]["last_beat_age_seconds"] <= most_s,
        lambda: node.status()["tasks"],
    )


def test_its_share_is_a_fixed_cap(node: Manager) -> None:
    program = Remote(node, "alice").hold("-b", str(3 * GIB), "-n", "2")
    result = said(program)
    assert (result["allocations"], result["error"], result["total_bytes"]) == (
        1,
        "CUDA_ERROR_OUT_OF_MEMORY",
        4 * GIB,
    )
    assert node.status()["tasks"][0]["memory_limit_bytes"] == [4 * GIB]


def test_status_and_doctor_say_what_is_different_over_udp(node: Manager) -> None:
    program = Remote(node, "alice").hold("-b", str(GIB))
    said(program)
    (env,) = [env for env in node.status()["envs"] if env["name"] == "alice"]
    assert env["memory_capped_bytes"] == 4 * GIB
    (row,) = [check for check in node.call("doctor")["checks"] if check["name"] == "udp"]
    assert "1 client, each with whole GPUs or a fixed cap" in row["detail"]
    assert "0 forged" in row["detail"]
    finish(program)


def test_who_falls_silent_is_reclaimed_since_nobody_can_tell_whether_he_lives(
    node: Manager,
) -> None:
    events = node.events(since=None)
    program = Remote(node, "alice").hold()
    said(program)
    program.kill()
    ended = events.expect("task.ended")
    assert "silent" in ended["why"]
    assert node.status()["gpus"][0]["tasks"] == 0


def test_beats_keep_it_alive_through_loss(node: Manager, network: LossyNetwork) -> None:
    remote = Remote(node, "alice", network)
    events = node.events(since=None)
    program = remote.hold()
    said(program)
    events.expect("task.granted")
    assert [task["state"] for task in node.status()["tasks"]] == ["running"]
    while network.lost < 10:
        events.expect_nothing(QUICK_BEAT_S)
    assert finish(program)[0] == 0
    events.expect("task.ended")


def test_a_waiter_over_udp_hears_of_its_place_and_of_its_grant(
    node: Manager, network: LossyNetwork
) -> None:
    events = node.events(since=None)
    holder = node.hold("bob")
    said(holder)
    program = Remote(node, "alice", network).hold()
    events.expect("task.waiting", env="alice")
    assert program.stderr is not None
    assert "place 1" in program.stderr.readline()
    assert finish(holder)[0] == 0
    assert said(program)["error"] is None
    assert finish(program)[0] == 0


def test_a_lease_over_udp_outlives_the_manager(node: Manager, network: LossyNetwork) -> None:
    program = Remote(node, "alice", network).hold()
    said(program)
    (before,) = node.status()["tasks"]
    node.restart()
    events = node.events(since=None)
    (after,) = node.status()["tasks"]
    assert after["id"] == before["id"]
    assert finish(program)[0] == 0
    events.expect("task.ended", task=before["id"])


def test_a_wrong_key_gets_no_answer_at_all(node: Manager) -> None:
    remote = Remote(node, "alice")
    (Path(remote.directory) / "key").write_text("00" * 32 + "\n")
    program = remote.hold()
    while node.status()["counters"]["packets_forged"] < 3:
        assert program.poll() is None, "it waits and says so"
    program.kill()
    assert node.status()["tasks"] == []


def test_a_task_goes_on_under_a_renewed_key_that_reaches_its_machine_in_time(
    make_manager: Make,
) -> None:
    node = make_manager(
        simulate="1x8GiB",
        options=["--udp", f"127.0.0.1:{_free_port()}"],
        environment={"NODEMGR_TIMEOUT_MS": "6000"},
    )
    node.quota("alice", 1)
    remote = Remote(node, "alice")
    program = remote.hold()
    said(program)
    (before,) = node.status()["tasks"]
    made = node.call("env_rekey", env="alice")
    shutil.copy(Path(made["key_directory"]) / "key", remote.directory)
    await_counted(node, "packets_forged", 1)
    await_beat(node, least_s=2)
    await_beat(node, most_s=0)  # it has looked again
    assert finish(program) == (0, "")
    ended = node.events().expect("task.ended", task=before["id"])
    assert "silent" not in ended["why"]


def test_without_udp_there_is_no_key_to_renew(make_manager: Make) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1)
    with pytest.raises(Fault, match="does not listen over UDP"):
        node.call("env_rekey", env="alice")


def test_keys_stay_where_they_belong(node: Manager, network: LossyNetwork) -> None:
    """Two files, here and on the client's machine; no output, packet, log or store has a key."""
    program = Remote(node, "alice", network).hold("-b", str(GIB))
    shown = [json.dumps(said(program))]
    secrets = [(node.state_dir / "keys" / "alice" / "key").read_text().strip()]
    node.call("env_rekey", env="alice", grace_ms=60_000)
    secrets.append((node.state_dir / "keys" / "alice" / "key").read_text().strip())
    shown += [
        json.dumps(node.call(verb))
        for verb in ("status", "doctor", "events", "allocations", "quota_show", "env_show")
    ]
    for pid in (node.pid, program.pid):
        shown += [
            Path(f"/proc/{pid}/{name}").read_bytes().decode("latin-1")
            for name in ("cmdline", "environ")
        ]
    shown += finish(program)[1:]
    shown += [packet.decode("latin-1") for packet in network.seen] + [node.log]
    own = set(node.directory.rglob("key"))
    files = [path for path in node.directory.rglob("*") if path.is_file() and path not in own]
    shown += [path.read_bytes().decode("latin-1") for path in files]
    for secret in secrets:
        assert len(secret) == 64
        for form in (secret, secret.upper(), bytes.fromhex(secret).decode("latin-1"), secret[:32]):
            assert not [text[:100] for text in shown if form in text]


def test_keys_are_their_owners_alone(node: Manager) -> None:
    directory = node.state_dir / "keys"
    modes = {
        path.relative_to(directory).as_posix(): path.stat().st_mode & 0o777
        for path in directory.rglob("*")
    }
    assert {mode for name, mode in modes.items() if "/" in name} == {0o600}
    assert {mode for name, mode in modes.items() if "/" not in name} == {0o700}
