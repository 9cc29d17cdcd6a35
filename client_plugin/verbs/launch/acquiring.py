"""`run --acquire start`: the lease of a command before it starts.

Knows: the library's client, which asks for the program that this process becomes. Must not know:
the command's program, how it is executed.
"""

from __future__ import annotations

import os

from client_plugin.messages import verbs as messages
from client_plugin.messages.form import relayed, stated
from client_plugin.ways.faults import Exit, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping


def acquired(
    variables: Dict[str, str], settings: Mapping[str, str], command: List[str]
) -> Dict[str, str]:
    """The variables of a command that holds its lease from the start. Raises Fault."""
    if not settings.get("address", "unix:").startswith("unix:"):
        remote = stated(
            "--acquire start needs the manager's socket, and this environment is reached over the"
            " network",
            "leave it out: the program asks at its first use of CUDA",
        )
        raise Fault(remote, Exit.USAGE)
    from client_plugin import lease, native

    os.environ.clear()  # the library reads the command's wishes there
    os.environ.update(variables)
    if not lease.start():
        raise Fault(messages.LIBRARY_MISSING(library=str(native.LIBRARY)))
    state, line = lease.acquire_for(" ".join(command))
    if state is native.ClientState.NO_MANAGER:
        raise Fault(relayed(line), Exit.UNREACHABLE)
    if state is native.ClientState.DENIED:
        code = Exit.WAIT_TIMED_OUT if lease.timed_out() else Exit.QUOTA_REFUSES
        raise Fault(relayed(line), code)
    return dict(os.environ)
