"""A conversation with a manager that goes away: the asker must learn whether it was heard."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Exit, Fault, Lost
from nodemgr.edge.rpc import wire


def behind(path: Path, serve: Callable[[socket.socket], None]) -> threading.Thread:
    """Serves one client."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        with listener, listener.accept()[0] as connection:
            serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def read_and_leave(connection: socket.socket) -> None:
    connection.recv(wire.PACKET_BYTES)


def leave_unread(connection: socket.socket) -> None:
    connection.recv(1, socket.MSG_PEEK)


def half_an_answer(connection: socket.socket) -> None:
    connection.recv(wire.PACKET_BYTES)
    connection.send(wire.encode("PART", rid=1, index=0, count=2, data="{"))


@pytest.mark.parametrize("end", [read_and_leave, leave_unread, half_an_answer])
def test_one_who_left_before_he_answered_may_have_heard(
    short_dir: Path, end: Callable[[socket.socket], None]
) -> None:
    thread = behind(short_dir / "socket", end)
    with pytest.raises(Lost) as lost, Conversation(short_dir / "socket", 30) as talk:
        talk.ask("status")
    assert lost.value.code == Exit.UNREACHABLE
    assert "\n" not in lost.value.message
    thread.join()


def test_one_who_does_not_answer_may_have_heard(short_dir: Path) -> None:
    done = threading.Event()
    thread = behind(short_dir / "socket", lambda connection: done.wait(60) and None)
    with (
        pytest.raises(Lost, match="does not answer"),
        Conversation(short_dir / "socket", 0.05) as talk,
    ):
        talk.ask("status")
    done.set()
    thread.join()


def test_one_who_is_not_there_has_not(short_dir: Path) -> None:
    with pytest.raises(Fault) as gone, Conversation(short_dir / "socket", 30):
        pass
    assert not isinstance(gone.value, Lost)
    assert gone.value.code == Exit.UNREACHABLE
