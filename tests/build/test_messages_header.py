"""The messages of the C programs: each text comes from its row."""

from __future__ import annotations

import importlib
import re

import pytest

from client_plugin.messages.form import Message
from csrc.build import MESSAGES, MessageHeader, format_of
from tests.client_c.compiled import CSRC

SENTENCE = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
COMMENT = re.compile(r"/\*.*?\*/|^\s*#include.*?$", re.DOTALL | re.MULTILINE)
PROGRAM_ROOMS = ("jobs", "supervisor", "runner")
"""Rooms of programs that print and send lines in many ways: no literal of theirs has words."""
RECORDS = {
    "nodemgr: job %s", "started %lld:%lld %ld %llu %lu", "ended %lld:%lld %s %s %d %s",
    "running %s %s", "nodemgr-order 1", "libnss_%s.so.2", "claim.%ld.%llu", "%s.ended.%.48s",
}  # fmt: skip
"""Titles, names and records that programs read."""


def test_a_field_is_a_conversion() -> None:
    assert format_of("{env} has {count:d} GPUs, 5 % of {what:.40}") == (
        "%s has %d GPUs, 5 %% of %.40s"
    )


@pytest.mark.parametrize("template", ["{size:.1f}", "{name!r}", "{size:,}", "{name:>8}"])
def test_a_field_that_c_cannot_print_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="is none of C"):
        format_of(template)


@pytest.mark.parametrize("header", MESSAGES, ids=lambda header: header.room)
def test_the_header_has_each_row(header: MessageHeader) -> None:
    table = importlib.import_module(f"client_plugin.messages.{header.table}")
    defined = re.findall(r'^#define NM_(\w+) "(.*)"$', header.path.read_text(), re.MULTILINE)
    assert dict(defined) == {
        key: format_of(row.template, header.number)
        for key, row in vars(table).items()
        if isinstance(row, Message)
    }


def test_no_line_of_the_library_stands_outside_the_table() -> None:
    """The first argument of nm_say and nm_say_later is a row, or a line that was made of one."""
    written = [
        f"{path.relative_to(CSRC)}: {text}"
        for room in ("client", "account", "memory", "hooks", "shim")
        for path in sorted((CSRC / room).glob("*.c"))
        for text in re.findall(r'\bnm_say(?:_later)?\(\s*"([^"]*)"', path.read_text())
        if text != "%s"
    ]
    assert written == []


def words_of(text: str) -> list[str]:
    """The words of a literal: conversions, escapes and keys are none."""
    bare = re.sub(r"%[-.*0-9]*[a-z]+|\\\\.", " ", text)
    return re.findall(r"(?<![\w./=-])[A-Za-z]{2,}(?![\w./=-])", bare)


@pytest.mark.parametrize("room", PROGRAM_ROOMS)
def test_no_sentence_of_a_program_stands_outside_the_table(room: str) -> None:
    written = [
        f"{path.relative_to(CSRC)}: {text}"
        for path in sorted((CSRC / room).glob("*.[ch]"))
        if path.name not in ("messages.h", "start.c")  # made of the table; assembly
        for text in SENTENCE.findall(COMMENT.sub("", path.read_text()))
        if len(words_of(text)) > 1 and text not in RECORDS
    ]
    assert written == []


@pytest.mark.parametrize("room", PROGRAM_ROOMS)
def test_a_program_prints_no_line_of_libc(room: str) -> None:
    """`perror` has a form of its own."""
    for path in (CSRC / room).glob("*.c"):
        assert not re.search(r"\b(?:perror|psignal|warnx?|errx?)\(", path.read_text()), path
