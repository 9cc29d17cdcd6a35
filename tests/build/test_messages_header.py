"""The library's messages in C: each text comes from its row."""

from __future__ import annotations

import re

import pytest

from client_plugin.messages import shim
from client_plugin.messages.form import Message
from csrc.build import MESSAGES, format_of
from tests.client_c.compiled import CSRC

ROWS = {key: row for key, row in vars(shim).items() if isinstance(row, Message)}


def test_a_field_is_a_conversion() -> None:
    assert format_of("{env} has {count:d} GPUs, 5 % of {what:.40}") == (
        "%s has %d GPUs, 5 %% of %.40s"
    )


@pytest.mark.parametrize("template", ["{size:.1f}", "{name!r}", "{size:,}", "{name:>8}"])
def test_a_field_that_c_cannot_print_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="is none of C"):
        format_of(template)


def test_the_header_has_each_row() -> None:
    defined = re.findall(r'^#define NM_(\w+) "(.*)"$', MESSAGES.read_text(), re.MULTILINE)
    assert dict(defined) == {key: format_of(row.template) for key, row in ROWS.items()}


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
