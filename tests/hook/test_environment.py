"""The wishes of a process's variables."""

from __future__ import annotations

import os

import pytest

from client_plugin import environment


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 4),
        ({"NODEMGR_GPUS": "2"}, 2),
        ({"NODEMGR_GPUS": "0"}, 0),
        ({"NODEMGR_GPUS": "two"}, 4),
        ({"NODEMGR_GPUS": "-2"}, 4),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "2"}, 4),
        ({"NODEMGR_GPUS": "1", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"CUDA_VISIBLE_DEVICES": " 5 , 7 "}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "1", "NODEMGR_VISIBLE": "1,3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,3", "NODEMGR_VISIBLE": "1,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0", "LOCAL_WORLD_SIZE": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0", "NODEMGR_GPUS": "0"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "NODEMGR_GPUS": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "NODEMGR_GPUS": "3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "none"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,x,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "²"}, 0),
    ],
)
def test_a_wish_is_a_number(environ: dict[str, str], gpus: int) -> None:
    assert environment.wished_gpus(environ, 4) == gpus


def test_no_gpus_by_default_is_no_gpu_whatever_the_world_size() -> None:
    assert environment.wished_gpus({"LOCAL_WORLD_SIZE": "2"}, 0) == 0


def test_tokens_are_32_hex_digits_and_differ() -> None:
    tokens = {environment.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 32 and set(token) <= set("0123456789abcdef") for token in tokens)


def test_put_changes_os_environ_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "putenv", None)
        environment.put("NODEMGR_TEST_PUT", "ä\udcff")
    try:
        assert os.environ["NODEMGR_TEST_PUT"] == "ä\udcff"
        assert os.environb[b"NODEMGR_TEST_PUT"] == os.fsencode("ä\udcff")
    finally:
        del os.environ["NODEMGR_TEST_PUT"]
