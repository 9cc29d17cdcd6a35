"""Orders on the manager's control socket, for administrators.

Knows: where the socket is, the lines for administrators where no manager answers. Must not know:
what a verb does.
"""

from __future__ import annotations

import os

from client_plugin.messages import ways as messages
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Away, Exit, Fault, Lost, Mute, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, Optional

    from client_plugin.ways.locations import AnyPath

CONTROL_SOCKET = "control.sock"
TIMEOUT_S = 10.0


def may_control(run_dir: AnyPath) -> Optional[bool]:
    """Whether this user may talk on the control socket; None: there is none."""
    path = os.path.join(run_dir, CONTROL_SOCKET)
    try:
        os.stat(path)
    except PermissionError:
        return False
    except OSError:
        return None
    return os.access(path, os.W_OK)


class ControlConnection:
    """One conversation with the manager of a run directory."""

    def __init__(self, run_dir: AnyPath, timeout_s: Optional[float] = TIMEOUT_S) -> None:
        """`timeout_s`: for each answer; None: however long it takes."""
        self._run_dir = os.fspath(run_dir)
        self._timeout_s = timeout_s
        self._talk: Optional[Conversation] = None

    def call(self, verb: str, **arguments: Any) -> Any:
        """The verb's result.

        Raises Fault: Away where no manager answers, Lost where one ended after it was asked.
        """
        self.ask(verb, **arguments)
        return self.answer()

    def ask(self, verb: str, **arguments: Any) -> None:
        """Sends an order, of which `answer` has the result."""
        try:
            if self._talk is None:
                path = os.path.join(self._run_dir, CONTROL_SOCKET)
                self._talk = Conversation(path, self._timeout_s).__enter__()
            self._talk.send_order(verb, arguments)
        except BaseException as error:
            self._give_up(error)

    def answer(self) -> Any:
        if self._talk is None:
            raise Away(messages.NO_MANAGER_ON(run_dir=self._run_dir))
        try:
            return self._talk.answer()[0]
        except BaseException as error:
            self._give_up(error)

    def fileno(self) -> int:
        """Readable once there is an answer; -1: there is no connection."""
        return -1 if self._talk is None else self._talk.fileno()

    def _give_up(self, error: BaseException) -> NoReturn:
        """Raises it, in the words for administrators where no manager has answered."""
        if isinstance(error, Fault) and error.refusal:
            raise error
        self.close()  # a late answer must not be taken for the next one's
        path = os.path.join(self._run_dir, CONTROL_SOCKET)
        if isinstance(error, Fault) and may_control(self._run_dir) is False:
            raise Fault(
                f"the control socket {path} is not open to you",
                "its group may use it (usermod -aG nodemgr USER), as root may",
                code=Exit.UNREACHABLE,
            ) from None
        if isinstance(error, Mute):
            raise Away(messages.MANAGER_MUTE(run_dir=self._run_dir)) from None
        if isinstance(error, Lost):
            raise Lost(
                f"the manager on {self._run_dir} ended before it answered",
                "look whether the order was carried out (nodemgr status), and give it again",
            ) from None
        if isinstance(error, Stopped):
            raise Stopped(messages.NO_MANAGER_ON(run_dir=self._run_dir), self._run_dir) from None
        if isinstance(error, Away):
            raise Away(messages.NO_MANAGER_ON(run_dir=self._run_dir)) from None
        raise error

    def __enter__(self) -> ControlConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._talk is not None:
            self._talk.__exit__()
            self._talk = None
