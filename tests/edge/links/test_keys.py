"""Keys in files, and join words as text."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from zmq.utils import z85

from nodemgr.edge.links import keys
from tests.each import each


def test_a_key_file_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "link.key"
    pair = keys.load(path)
    assert keys.load(path) == pair
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("no key\n")
    with pytest.raises(ValueError, match=r"."):
        keys.load(path)


def test_a_word_has_the_heads_key_and_a_secret_of_its_own() -> None:
    head = keys.new_pair()
    word = keys.new_word(head.public)
    assert keys.read_word(word.text) == word
    assert set(word.text) <= set(string.ascii_letters + string.digits + "-_")
    assert keys.new_word(head.public).pair != word.pair


def test_a_word_is_no_option_of_a_command_line() -> None:
    """In base64 this key begins with "-"."""
    head = z85.encode(b"\xf8" + bytes(31)).decode()
    assert keys.new_word(head).text.startswith("join--")


BAD_ENDS = "", "a", "a" * 86 + "!", "a" * 85, "ä" * 86, "-" * 200


@each(["", "a" * 86, *("join-" + end for end in BAD_ENDS)])
def test_what_is_no_word_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        keys.read_word(text)


@each([None, 7, "", "a" * 39, "#" * 40, "ä" * 40, "~" * 40, ["a"] * 40])
def test_what_is_no_key_is_known_as_such(value: object) -> None:
    assert not keys.is_key(value)
    assert keys.is_key(keys.new_pair().public)
