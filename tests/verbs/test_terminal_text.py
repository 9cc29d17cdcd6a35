"""The output of a job on a terminal, and in a line of ours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_plugin.verbs.picture.pager import Pager
from client_plugin.verbs.presentation.terminal_text import STEERS, TerminalText, one_line
from tests.support.examples import examples


def shown(*pieces: bytes) -> str:
    text = TerminalText()
    return "".join(map(text.add, pieces)) + text.end()


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"plain\ttab\r\nline\n", "plain\ttab\r\nline\n"),
        (b"\x1b[1;31mred", "\x1b[1;31mred\x1b[0m"),
        (b"\x1b[2Jx", "\\x1b[2Jx"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (b"\x9b2J", "\\x9b2J"),
        ("\x9b2J".encode(), "\\x9b2J"),
        (b"\x7f\x08\x00", "\\x7f\\x08\\x00"),
        (b"bad \xff byte", "bad \\xff byte"),
        ("a\u202eb\u2066c".encode(), "a\\u202eb\\u2066c"),
        ("gr\u00fc\u00df \U0001f600".encode(), "gr\u00fc\u00df \U0001f600"),
        (b"\x1b[31", "\\x1b[31"),
        (b"cut \xc3", "cut \\xc3"),
    ],
)
def test_only_colours_steer_the_terminal(output: bytes, text: str) -> None:
    assert shown(output) == text
    assert shown(*(output[at : at + 1] for at in range(len(output)))) == text


@settings(deadline=None, max_examples=examples(100))
@given(st.binary(max_size=60))
def test_nothing_else_gets_through(output: bytes) -> None:
    left = STEERS.sub(lambda found: "" if found[1] else found[0], shown(output))
    assert not STEERS.search(left)


def test_a_line_among_ours_has_no_colour_and_cannot_overwrite() -> None:
    assert one_line("\x1b[31mred\x1b[0m") == "\\x1b[31mred\\x1b[0m"
    assert one_line("10 %\r20 %\r") == "20 %"
    assert one_line("j9 is done\rTASK  ENV") == "TASK  ENV"
    pager = Pager("j1")
    pager.add(b"\x1b[2Jt1  alice\n")
    assert "".join(text for text, _ in pager.lines(40, 9)[1]).rstrip() == "  \\x1b[2Jt1  alice"
