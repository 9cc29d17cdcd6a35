"""Orders about tasks that are refused before the core is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodemgr.edge.api.task_operations import TaskOperations
from nodemgr.edge.rpc.operation import OperationError
from tests.core.world import Node


def test_an_elastic_task_is_never_suspended_and_the_order_says_so() -> None:
    node = Node(2)
    node.quota("a", 2)
    node.asks("a", 1, 1, most=2, elastic=True)
    orders = TaskOperations(cast(Any, SimpleNamespace(state=node.state)))
    admin = cast(Any, SimpleNamespace(env=None, name="root"))
    with pytest.raises(OperationError, match="t1 is an elastic task, which is never suspended"):
        orders.suspend(admin, {"task": "t1"})
