"""The words of a leader; what is said by others, twice, or about other GPUs."""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import SendAck
from nodemgr.core.model.entities import DenyCode, Word
from tests.core.world import Node


def led(gpus: int = 3) -> Node:
    node = Node(gpus)
    node.quota("a", gpus)
    node.asks("a", 9, 1)
    node.asks("a", 1, 1, most=gpus, elastic=True)
    node.dies(9)
    node.passes(2_000)
    return node


def test_accepted_ends_an_offer_and_may_be_said_twice() -> None:
    node = led()
    (offered,) = node.state.elastics["t2"].offered
    for _ in range(2):
        node.says("a", 1, Word.ACCEPTED, int(offered[4:]))
        assert len(node.of(SendAck)) == 1
        assert node.state.elastics["t2"].offered == ()
    assert len(node.gpus_of(1) or ()) == 3


@pytest.mark.parametrize("word", list(Word))
def test_another_process_is_refused(word: Word) -> None:
    node = led()
    token = node.state.tasks["t2"].token
    node.asks("a", 2, token=token)
    for pid in (2, 77):
        node.says("a", pid, word, 0)
        denied = node.denied(pid)
        assert denied is not None
        assert denied.code is DenyCode.BAD_REQUEST
    assert len(node.gpus_of(1) or ()) == 3


@pytest.mark.parametrize("word", list(Word))
def test_a_word_about_an_unknown_gpu_changes_nothing(word: Word) -> None:
    node = led()
    before = node.rows()
    node.says("a", 1, word, 99)
    assert node.rows() == before
    assert len(node.of(SendAck)) == 1


def test_the_last_gpu_is_not_left() -> None:
    node = led()
    for index in range(3):
        node.says("a", 1, Word.LEFT, index)
    assert len(node.gpus_of(1) or ()) == 1


def test_declined_without_an_offer_changes_nothing() -> None:
    node = led()
    for index in range(3):
        node.says("a", 1, Word.ACCEPTED, index)
    for index in range(3):
        node.says("a", 1, Word.DECLINED, index)
    assert len(node.gpus_of(1) or ()) == 3
