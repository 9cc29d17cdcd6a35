"""Orders and answers as lines: each is read as it was written, and a garbled one is refused."""

from __future__ import annotations

import pytest

from nodemgr.edge.suspension.order_lines import (
    MAX_LINE_BYTES,
    LineError,
    Order,
    OrderEnd,
    Target,
)

ORDER = Order("suspend", "t17", 10_000, (Target(4711, 889_232, 1 << 30), Target(4712, 1, 0)))


def test_an_order_is_read_as_it_was_written() -> None:
    assert ORDER.line() == "suspend t17 10000 4711:889232:1073741824 4712:1:0"
    assert Order.parse(ORDER.line()) == ORDER


def test_an_order_to_a_full_ledger_fits_a_line() -> None:
    largest = Target((1 << 22) - 1, (1 << 63) - 1, (1 << 47) - 1)
    order = Order("suspend", f"t{1 << 62}", 10_000, (largest,) * 1024)
    assert len(order.line()) <= MAX_LINE_BYTES
    assert Order.parse(order.line()) == order


@pytest.mark.parametrize(
    "line",
    ["", "suspend", "suspend t17", "end t17 10", "suspend t17 x", "resume t17 10 1:2",
     "resume t17 10 1:2:3:4", "resume t17 10 a:b:c", "resume  10 1:2:3"],
)  # fmt: skip
def test_a_garbled_order_is_refused(line: str) -> None:
    with pytest.raises(LineError):
        Order.parse(line)


@pytest.mark.parametrize(
    "answer",
    [
        OrderEnd("t17"),
        OrderEnd("t17", False, "call", ("4711", "cuCheckpointProcessLock", "CUDA_ERROR_NOT_READY")),
        OrderEnd("t17", True, "container", ("4711", "10", "2")),
    ],
)
def test_an_answer_is_read_as_it_was_written(answer: OrderEnd) -> None:
    assert OrderEnd.parse(answer.line()) == answer


def test_a_field_is_one_word() -> None:
    answer = OrderEnd("t17", False, "driver", ("no such file\n", ""))
    assert answer.line() == "failed t17 in driver no_such_file_ _"


@pytest.mark.parametrize("line", ["", "done", "failed t17", "failed t17 up call", "done t17 x\n"])
def test_a_garbled_answer_is_refused(line: str) -> None:
    with pytest.raises(LineError):
        OrderEnd.parse(line)
