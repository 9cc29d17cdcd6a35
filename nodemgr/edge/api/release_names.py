"""The lease or waiting request that an order to release names, for all orders of this kind.

Knows: the refusal of a name that means nothing. Must not know: the transport of the order.
"""

from __future__ import annotations

from nodemgr.core.lifecycle import administration
from nodemgr.core.state.node_state import State
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.messages.orders import ENV_HAS_NO_TASK, NO_TASK

SHOWN_CHARS = 40


def to_release(state: State, name: str, env: str | None) -> str:
    """The present id of it. `env`: the environment of the order; None: an administrator's.

    Raises OperationError if there is none, or it is another environment's.
    """
    found = administration.to_release(state, name, env)
    if found is not None:
        return found
    shown = name[:SHOWN_CHARS]
    raise OperationError(
        NO_TASK(task=shown) if env is None else ENV_HAS_NO_TASK(env=env, task=shown)
    )
