"""Processes as they come: killed, stopped, forked, replaced, with closed standard streams.

Also which process sees which other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodemgr.simulator import SimulatedNode
from tests.sim.client import PEER, refused, value_of
from tests.sim.conftest import GIB, MIB, StartClient
from tests.support.limits import WAIT_LIMIT_S

IN_CHILD = [{"do": "info", "with": []}, {"do": "alloc", "with": [MIB]}, {"do": "free", "with": [0]}]


def test_a_device_needs_a_context(node: SimulatedNode, start: StartClient) -> None:
    client = start(node)
    for order in (client.count, client.info, lambda: client.retain(0), lambda: client.free(1)):
        with refused("NOT_INITIALIZED"):
            order()
    client.init()
    client.init()
    assert client.count() == 2
    for order in (client.current_device, client.info, lambda: client.alloc(1)):
        with refused("INVALID_CONTEXT"):
            order()
    for ordinal in (2, -1):
        with refused("INVALID_DEVICE"):
            client.retain(ordinal)
    client.retain(1)
    assert client.current_device() == 1


def test_a_destroyed_context_is_no_longer_current(node: SimulatedNode, start: StartClient) -> None:
    client = start(node)
    client.init()
    context = client.create_context(1)
    client.alloc(MIB)
    client.do("cuCtxPushCurrent_v2", context)
    client.destroy_context(context)

    with refused("INVALID_CONTEXT"):
        client.alloc(1)
    with refused("INVALID_CONTEXT"):
        client.do("cuCtxSetCurrent", context)
    client.create_context(0)
    assert client.current_device() == 0


def test_a_stopped_process_holds_up_nobody(node: SimulatedNode, ready: StartClient) -> None:
    stopped, other = ready(node), ready(node)
    stopped.alloc(100 * MIB)

    stopped.stop()
    assert other.info()[0] == GIB - 100 * MIB
    other.free(other.alloc(GIB - 100 * MIB))
    with refused("OUT_OF_MEMORY"):
        other.alloc(GIB)
    assert node.books()[0].of(stopped.pid) is not None

    stopped.resume()
    assert stopped.info()[0] == GIB - 100 * MIB


@pytest.mark.parametrize("raw", [False, True], ids=["fork", "bare system call"])
def test_a_forked_child_owns_nothing(node: SimulatedNode, ready: StartClient, raw: bool) -> None:
    client = ready(node)
    address = client.alloc(10 * MIB)

    for answer in client.in_child(
        [*IN_CHILD, {"do": "free", "with": [address]}, {"do": "count", "with": []}], raw
    ):
        assert answer == {"refused": 3}

    assert node.books()[0].used_bytes == 10 * MIB, (
        "neither the child's calls nor its end touch the parent's books"
    )
    client.free(address)
    assert node.books()[0].used_bytes == 0


@pytest.mark.parametrize("raw", [False, True], ids=["fork", "bare system call"])
def test_a_forked_child_can_start_afresh(
    node: SimulatedNode, ready: StartClient, raw: bool
) -> None:
    client = ready(node)
    address = client.alloc(10 * MIB)
    orders: list[dict[str, Any]] = [
        {"do": "ready", "with": [1]},
        {"do": "free", "with": [address]},
        {"do": "alloc", "with": [5 * MIB]},
        {"do": "info", "with": []},
        {"do": "current_device", "with": []},
    ]

    _, free, _, info, device = client.in_child(orders, raw)

    assert free == {"refused": 1}, "the parent's addresses mean nothing here"
    assert value_of(info) == [GIB - 5 * MIB, GIB]
    assert value_of(device) == 1
    assert [books.used_bytes for books in node.books()] == [10 * MIB, 0]
    assert client.info() == [GIB - 10 * MIB, GIB]
    client.alloc(MIB)


def test_a_program_that_replaces_itself_loses_what_it_had(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    client.alloc(10 * MIB)

    with pytest.raises(Exception, match="Expecting value"):
        client.replace_by("/bin/true")

    assert node.books()[0].used_bytes == 0


def test_a_process_is_listed_once_it_has_a_context(node: SimulatedNode, start: StartClient) -> None:
    client = start(node)
    client.init()
    assert node.books()[1].processes == ()
    client.retain(1)
    (listed,) = node.books()[1].processes
    assert (listed.pid, listed.contexts, listed.used_bytes) == (client.pid, 1, 0)
    assert node.books()[0].processes == ()


def test_the_nodes_descriptor_keeps_out_of_the_way(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    assert client.descriptors()
    assert min(client.descriptors()) >= 50


def exit_code(node: SimulatedNode, program: str) -> int:
    """The exit code of Python code that may import peer, in a process of the node."""
    command = [
        sys.executable,
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, sys.argv[1])\n{program}",
        str(PEER.parent),
    ]
    return subprocess.run(
        command, check=False, env={**os.environ, **node.environment()}, timeout=WAIT_LIMIT_S
    ).returncode


def test_standard_streams_that_are_closed_stay_closed(node: SimulatedNode) -> None:
    """The program's first open after cuInit gets number 0, as without us."""
    program = (
        "import os; os.closerange(0, 3)\n"
        "import peer; peer.ready(); peer.alloc(1)\n"
        "numbers = peer.descriptors(); first = os.open('/dev/null', os.O_RDONLY)\n"
        "os._exit(0 if first == 0 and min(numbers) > 2 else 1)\n"
    )
    assert exit_code(node, program) == 0


def test_few_descriptors_are_no_obstacle(node: SimulatedNode) -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\nimport peer;"
        " peer.ready(); peer.alloc(1)\n"
    )
    assert exit_code(node, program) == 0


def test_a_small_address_space_is_no_obstacle(node: SimulatedNode) -> None:
    """A process with limited virtual memory gets smaller reserves of addresses, not a failure."""
    program = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\nimport peer;"
        " peer.ready(); peer.alloc(1); peer.put(peer.alloc(1 << 20), 'x'); peer.alloc(1 << 29)\n"
    )
    assert exit_code(node, program) == 0


def test_many_allocations_live_at_once(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    addresses = client.alloc_many(64, 5000)
    assert len(set(addresses)) == 5000
    assert node.books()[0].used_bytes == 64 * 5000
    for address in addresses[::50]:
        client.free(address)
    assert node.books()[0].used_bytes == 64 * 4900
    assert client.address_range(addresses[1] + 63) == [addresses[1], 64]


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace of one's own takes root")
def test_pids_are_those_that_the_reader_sees(node: SimulatedNode, tmp_path: Path) -> None:
    """A process in a pid namespace of its own is pid 1 there, and another number out here."""
    program = (
        f"import sys; sys.path.insert(0, {str(PEER.parent)!r}); import os, peer\n"
        "peer.ready(); peer.alloc(1000); print(os.getpid(), flush=True); sys.stdin.read()\n"
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-S", "-c", program]
    environment = {**os.environ, **node.environment()}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if (inner := process.stdout.readline()) == "":
            pytest.skip("this place allows no pid namespaces")
        (listed,) = node.books()[0].processes
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert int(inner) == 1
        assert [str(listed.pid)] == children
        process.communicate()
