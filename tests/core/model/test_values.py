"""Values: made by their class, by a function, or from another one."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import Asker, QueueRow, Quota, Transport
from nodemgr.core.model.events import Acquire
from nodemgr.core.model.values import maker, replace

ASKER = Asker("unix:7:1", "5", Transport.UNIX, 7, "ann")


def test_a_maker_makes_what_the_class_makes() -> None:
    quota = maker(Quota)
    assert quota(2) == Quota(2)
    assert quota(gpus=2, users=("ann",), memory_bytes=1) == Quota(2, 1, users=("ann",))


@pytest.mark.parametrize("fields", [{}, {"name": "low", "rank": 1, "colour": "red"}, {"rank": 1}])
def test_a_maker_refuses_what_the_class_refuses(fields: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        QueueRow(**fields)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        maker(QueueRow)(**fields)  # type: ignore[arg-type]


def test_a_default_that_is_made_anew_each_time_is_not_shared() -> None:
    with pytest.raises(TypeError, match="unkept_bytes"):
        maker(Acquire)


def test_a_replaced_field_leaves_the_value_before_as_it_was() -> None:
    after = replace(ASKER, rid="6", pid=None)
    assert after == Asker("unix:7:1", "6", Transport.UNIX, None, "ann")
    assert Asker("unix:7:1", "5", Transport.UNIX, 7, "ann") == ASKER


def test_there_is_no_replacing_a_field_that_is_not_there() -> None:
    with pytest.raises(AttributeError):
        replace(ASKER, name="bob")
