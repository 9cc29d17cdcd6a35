"""Each row of client_plugin/fields.py, and what the borders derive from it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from client_plugin import fields
from client_plugin.fields import Field
from client_plugin.verbs.arguments import kinds
from csrc import build
from nodemgr.core.model.entities import Quota
from nodemgr.core.placement.orders import ORDERS
from nodemgr.edge.rpc import wire
from nodemgr.edge.rpc.operation import OperationError, of_field
from tests.support.manager import ROOT

C = "".join(path.read_text() for end in ("c", "def") for path in (ROOT / "csrc").rglob(f"*.{end}"))
NUMBERS = {row.name: row for row in fields.ALL if row.high}


def named(row: Field) -> str:
    return row.name


@pytest.mark.parametrize("rows", [fields.RUN, fields.QUOTA, fields.OF_QUEUE], ids=len)
def test_a_name_and_an_option_have_one_row(rows: tuple[Field, ...]) -> None:
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    options = [row.option for row in rows if row.help]
    assert len(options) == len(set(options))


def test_a_quota_has_a_row_for_each_field_and_its_default_is_one_of_the_words() -> None:
    listed = {row.name for row in fields.QUOTA}
    own = {field.name for field in dataclasses.fields(Quota)}
    assert listed - own == {"memory_per_gpu_bytes"}
    assert own - listed == {"users", "groups"}
    quota = Quota(1)
    for row in fields.QUOTA:
        value = getattr(quota, row.name)
        assert value is not None or row.unset or not row.is_ordered, row.name
        assert not row.words or value in (*row.words, None), row.name


def test_the_placements_are_those_that_the_core_knows() -> None:
    assert set(fields.PLACEMENTS) == {"auto", "reliable", "learned", *ORDERS}


def test_the_clients_know_each_variable_and_the_wire_each_key() -> None:
    variables = {row.variable for row in fields.RUN if row.variable}
    assert not {name for name in variables if f'"{name}"' not in C}
    assert not {row.wire for row in fields.RUN if row.wire} - {*wire._KEYS}


def test_the_c_library_has_the_rows_that_the_build_makes() -> None:
    assert build.WISHES.read_text() == build.wishes()


@pytest.mark.parametrize("row", NUMBERS.values(), ids=named)
def test_the_manager_takes_a_number_within_its_bounds_alone(row: Field) -> None:
    parse = of_field(row, {}).parse
    assert [parse(row.low), parse(row.high)] == [row.low, row.high]
    assert of_field(row, {}, is_wish=True).parse(None) is None
    if row.unset:
        assert parse(None) is None
    else:
        with pytest.raises(OperationError):
            parse(None)
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
