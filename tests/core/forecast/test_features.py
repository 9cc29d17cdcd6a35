"""The source's table and its test vectors; features that a stranger sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_plugin.messages.form import Message
from nodemgr.core.forecast import features as form
from nodemgr.core.forecast.features import FeaturesError, WorkRow
from tests.core.forecast.trainings import features, is_of
from tests.support.examples import examples

TASK_A = {
    "addv2": 2000, "conv2d": 4800, "maxpool": 3200, "relu": 0, "matmul": 4200, "avgpool": 0,
    "mul": 0, "concat": 0, "softmax": 100,
}  # fmt: skip
BODY = {
    "schema_version": 1,
    "framework": "torch 2.5.1",
    "graph": TASK_A,
    "execution": {"batchsize": 32, "iteration": 2000, "input": 1000},
    "richer": {"parameters": 7, "operations": 9},
    "work": [["bfloat16", 5, 9, 3, 1], ["float32", -8, 0, 3, 2]],
    "memory": {"peak_bytes": 11},
}


def test_the_source_s_task_a_is_encoded_in_the_order_of_the_table() -> None:
    found = form.parse(BODY)
    vector = form.vector(found, (7, 32, 2880))
    assert vector == (
        2000, 0, 0, 0, 4200, 4800, 0, 100, 0, 3200, 0, 32, 2000, 1000, 7, 32, 2880,
    )  # fmt: skip
    named = dict(
        zip((*form.GRAPH, *form.EXECUTION, "capability", "gb", "cores"), vector, strict=True)
    )
    of_source = [named[kind] for kind in TASK_A] + [32, 2000, 1000, 7, 32, 2880]
    assert len(of_source) == 15
    assert of_source == [*TASK_A.values(), *vector[-6:]]
    assert form.table(found) == {**dict.fromkeys(form.GRAPH, 0), **TASK_A, **BODY["execution"]}


def test_the_source_s_task_with_60_of_100_iterations_done_has_40_left() -> None:
    found = form.parse(BODY | {"execution": {"batchsize": 32, "iteration": 100, "input": 1000}})
    assert found.after(60).execution == (32, 40, 1000)
    assert found.after(60).is_same_step(found)
    assert found.after(200).iterations == 0


def test_features_are_what_they_were_after_packing() -> None:
    found = form.parse(BODY)
    assert found.work == (WorkRow("bfloat16", 5, 9, 3, 1), WorkRow("float32", -8, 0, 3, 2))
    assert form.parse(form.packed(found)) == found
    assert form.parse(form.packed(features())) == features()
    assert form.parse({"schema_version": 1}).graph == (0,) * 11


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (
            {"schema_version": 2},
            Message("the features are of another version: `schema_version` must be {version}"),
        ),
        (
            {"schema_version": True},
            Message("the features are of another version: `schema_version` must be {version}"),
        ),
        (
            {"command": "rm"},
            Message(
                "`{place}` of the features has unknown names: {names}",
                "use a client of the manager's version",
            ),
        ),
        (
            {"graph": {"conv3d": 1}},
            Message(
                "`{place}` of the features has unknown names: {names}",
                "use a client of the manager's version",
            ),
        ),
        ({"graph": [1]}, Message("the features have no form: `{place}` must be a JSON object")),
        (
            {"graph": {"mul": -1}},
            Message("`{place}` of the features must be a whole number from {low} to {high}"),
        ),
        (
            {"graph": {"mul": 1.5}},
            Message("`{place}` of the features must be a whole number from {low} to {high}"),
        ),
        (
            {"graph": {"mul": 2**63}},
            Message("`{place}` of the features must be a whole number from {low} to {high}"),
        ),
        (
            {"execution": {"batchsize": True}},
            Message("`{place}` of the features must be a whole number from {low} to {high}"),
        ),
        (
            {"framework": "x" * 65},
            Message(
                "`framework` of the features must be a name and a version, at most {limit} "
                "letters, digits, spaces and . _ + -"
            ),
        ),
        (
            {"framework": "a\nb"},
            Message(
                "`framework` of the features must be a name and a version, at most {limit} "
                "letters, digits, spaces and . _ + -"
            ),
        ),
        (
            {"framework": None},
            Message(
                "`framework` of the features must be a name and a version, at most {limit} "
                "letters, digits, spaces and . _ + -"
            ),
        ),
        ({"work": {}}, Message("`work` of the features must be a list of at most {limit} rows")),
        (
            {"work": [["float32", 0, 0, 0, 0]] * 129},
            Message("`work` of the features must be a list of at most {limit} rows"),
        ),
        (
            {"work": [["float31", 0, 0, 0, 0]]},
            Message(
                "`{place}` of the features must be a precision of {precisions}, then intensity, "
                "operations, bytes and kernels"
            ),
        ),
        (
            {"work": [["float32", 0, 0, 0]]},
            Message(
                "`{place}` of the features must be a precision of {precisions}, then intensity, "
                "operations, bytes and kernels"
            ),
        ),
        (
            {"work": [[[], 0, 0, 0, 0]]},
            Message(
                "`{place}` of the features must be a precision of {precisions}, then intensity, "
                "operations, bytes and kernels"
            ),
        ),
        (
            {"work": [["float32", 21, 0, 0, 0]]},
            Message("`{place}` of the features must be a whole number from {low} to {high}"),
        ),
        (
            {"memory": {"peak_bytes": "1"}},
            Message("`{place}` of the features must be a whole number from {low} to {high}"),
        ),
    ],
)
def test_features_beyond_their_form_are_refused_with_one_line(
    change: dict[str, Any], row: Message
) -> None:
    with pytest.raises(FeaturesError) as refused:
        form.parse(BODY | change)
    assert is_of(row, refused.value.line)
    assert refused.value.line.isprintable()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*form.FORM, "mul", "peak_bytes"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(100), deadline=None)
@given(ANYTHING, st.sampled_from(sorted(form.FORM)))
def test_nothing_that_a_client_sends_raises_another_error(body: object, name: str) -> None:
    for sent in (body, BODY | {name: body}):
        try:
            found = form.parse(sent)
        except FeaturesError:
            continue
        assert form.parse(form.packed(found)) == found
