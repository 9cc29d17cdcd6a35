"""Each row of client_plugin/fields.py, and what the borders derive from it."""

from __future__ import annotations

import re

import pytest

from client_plugin import fields
from client_plugin.fields import Field
from client_plugin.verbs.arguments import kinds
from nodemgr.edge.rpc import wire
from nodemgr.edge.rpc.operation import OperationError, of_field
from tests.support.manager import ROOT

C = "".join(path.read_text() for path in (ROOT / "csrc").rglob("*.c"))
NUMBERS = [row for row in fields.RUN if row.high and not row.most]


def named(row: Field) -> str:
    return row.name


def test_a_name_and_an_option_have_one_row() -> None:
    names = [row.name for row in fields.RUN]
    assert len(names) == len(set(names))
    options = [row.option for row in fields.RUN if row.verbs]
    assert len(options) == len(set(options))


def test_the_clients_know_each_variable_and_the_wire_each_key() -> None:
    variables = {row.variable for row in fields.RUN if row.variable}
    assert not {name for name in variables if f'"{name}"' not in C}
    assert not {row.wire for row in fields.RUN if row.wire} - {*wire._KEYS}


@pytest.mark.parametrize("row", NUMBERS, ids=named)
def test_the_manager_takes_a_number_within_its_bounds_alone(row: Field) -> None:
    parse = of_field(row, {}).parse
    assert [parse(row.low), parse(row.high), parse(None)] == [row.low, row.high, None]
    for wrong in (row.low - 1, row.high + 1, True, "1", 1.5):
        with pytest.raises(OperationError, match=re.compile("must be")):
            parse(wrong)


@pytest.mark.parametrize("row", [row for row in fields.RUN if row.words], ids=named)
def test_a_word_is_one_of_its_row(row: Field) -> None:
    kind = kinds.of_field(row)
    assert kind is not None
    assert [kind.parse(word) for word in row.words] == [*row.words]
    for parse in (kind.parse, of_field(row, {}).parse):
        with pytest.raises((ValueError, OperationError), match=row.words[0]):
            parse("nix")


def test_a_wish_has_what_was_given_and_its_variables_the_ends_of_a_range() -> None:
    wish = fields.wished(
        {"gpus": (2, 4), "memory_bytes": (8, None), "wait_ms": 1_500, "hold": False, "after": []}
    )
    assert wish == {"gpus": 2, "gpus_max": 4, "memory_bytes": 8, "wait_ms": 1_500}
    assert fields.wished({"gpus": (0, None), "wait_ms": 0}) == {"gpus": 0, "wait_ms": 0}
    assert fields.variables({**wish, "compute_percent": 30}) == {
        "NODEMGR_GPUS": "2-4", "NODEMGR_MEMORY": "8", "NODEMGR_WAIT": "2", "NODEMGR_COMPUTE": "30%",
    }  # fmt: skip
