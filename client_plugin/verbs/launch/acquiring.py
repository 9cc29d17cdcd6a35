"""`run --acquire start`: the lease of a command before it starts.

Knows: the library's client, which asks for the program that this process becomes; that the manager
is told the program before, for its expected time. Must not know: how the command is executed.
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
        raise Fault(remote, code=Exit.USAGE)
    from client_plugin import lease, native
    from client_plugin.prediction import run_report
    from client_plugin.verbs.launch import known_programs

    os.environ.clear()  # the library reads the command's wishes there
    os.environ.update(variables)
    if not lease.start():
        raise Fault(messages.LIBRARY_MISSING(library=str(native.LIBRARY)))
    lease.share_token()
    if not run_report.is_followed():
        known_programs.begun(command, os.environ[lease.TASK])
    state, line = lease.acquire_for(" ".join(command))
    if state is native.ClientState.NO_MANAGER:
        raise Fault(relayed(line), code=Exit.UNREACHABLE)
    if state is native.ClientState.DENIED:
        code = Exit.WAIT_TIMED_OUT if lease.timed_out() else Exit.QUOTA_REFUSES
        raise Fault(relayed(line), code=code)
    return dict(os.environ)
