"""The order in which GPUs of elastic leases are recalled."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import ElasticLease
from nodemgr.core.state.elastic_leases import above_least


@pytest.mark.parametrize(("least", "above"), [(1, ("c", "b")), (2, ("c",)), (3, ()), (4, ())])
def test_the_last_added_gpu_above_the_least_number_goes_first(
    least: int, above: tuple[str, ...]
) -> None:
    assert above_least(ElasticLease("t1", least, 4, ("a", "b", "c"))) == above
