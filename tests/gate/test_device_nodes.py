"""Which numbers belong to a GPU, from what the driver says in /proc."""

from __future__ import annotations

import pytest

from nodemgr.edge.kernel.device_nodes import DeviceNode, Nodes, parse

MAJORS = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
236 nvidia-uvm
237 nvidia-caps
238 nvidia-caps-imex-channels

Block devices:
237 nvidia-caps
259 blkext
"""
CAPS = """config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu1/gi7/ci7/access 209
"""


def test_a_gpu_is_its_node_and_the_capabilities_of_its_instances() -> None:
    nodes = parse(MAJORS, CAPS)
    assert nodes.of_gpus([0]) == {DeviceNode(195, 0), DeviceNode(237, 3), DeviceNode(237, 4)}
    assert nodes.of_gpus([1, 5]) == {DeviceNode(195, 1), DeviceNode(237, 209), DeviceNode(195, 5)}


def test_no_env_gets_the_capability_to_make_instances() -> None:
    opened = parse(MAJORS, CAPS).all_gpus()
    assert not opened & {DeviceNode(237, 1), DeviceNode(237, 2)}
    assert {DeviceNode(237, 3), DeviceNode(237, 209)} <= opened


def test_the_nodes_of_all_gpus_are_those_that_may_come_too_and_no_control_node() -> None:
    opened = parse(MAJORS, CAPS).all_gpus()
    assert {DeviceNode(195, 0), DeviceNode(195, 253)} <= opened
    assert not opened & {DeviceNode(195, 255), DeviceNode(195, 254)}
    assert {device.major for device in opened} == {195, 237}


@pytest.mark.parametrize(
    ("majors", "caps"),
    [
        ("", ""),
        ("Character devices:\n195 nvidia\n\nBlock devices:\n237 nvidia-caps\n", CAPS),
        ("Character devices:\nnvidia-caps\n²37 nvidia-caps\n-1 nvidia-caps\n", CAPS),
    ],
)
def test_without_capabilities_a_gpu_is_its_node(majors: str, caps: str) -> None:
    nodes = parse(majors, caps)
    assert nodes.caps_major is None
    assert nodes.of_gpus([0]) == {DeviceNode(195, 0)}


def test_garbage_in_the_list_of_capabilities_opens_nothing() -> None:
    lines = (
        "gpu0\ngpu0/ 3\ngpu0/gi0/access -3\ngpu/gi0/access 3\ngpux/gi0 3\ngpu0/gi0/access 3"
        " 4\n\0\ngpu0/gi0/access 99999999\n"
    )
    assert parse(MAJORS, lines) == Nodes(237, {})
