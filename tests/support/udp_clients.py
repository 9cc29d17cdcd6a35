"""The test's side of fake_client.py: one client process, its messages as dictionaries."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from tests.support.limits import WAIT_LIMIT_S

PROGRAM = Path(__file__).with_name("fake_client.py")
_rids = itertools.count(1)


def packet(verb: str, **fields: object) -> str:
    """The contract's text; its bytes, as characters."""
    text = f"NODEMGR/1 {verb}\n" + "".join(
        f"{key}={value}\n" for key, value in fields.items() if value is not None
    )
    return text.encode().decode("latin-1")


class ClientError(Exception):
    """The result of the client's system call."""


class FakeClient:
    """One process of an env."""

    def __init__(
        self,
        env_dir: Path,
        *,
        connect: bool = True,
        user: int | None = None,
        groups: Sequence[int] = (),
    ) -> None:
        self.env_dir = env_dir
        self.token = secrets.token_hex(16)
        self.grant: dict[str, str] = {}
        command = [sys.executable, "-S", "-E", str(PROGRAM)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        if user is not None:
            self.order("become", user=user, groups=list(groups))
        if connect:
            self.connect()

    def order(self, do: str, **arguments: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer

    def connect(self) -> None:
        self.order("connect", path=str(self.env_dir / "socket"))

    def send(self, verb: str, *, with_fds: bool = False, **fields: object) -> None:
        self.order("send", text=packet(verb, **fields), with_fds=with_fds)

    def receive(self, timeout_s: float = WAIT_LIMIT_S) -> dict[str, str] | None:
        """The next message: its fields and `verb`.

        None if nothing comes, {"verb": "EOF"} at the end.
        """
        answer = self.order("receive", timeout_s=timeout_s)
        if answer.get("end"):
            return {"verb": "EOF"}
        if answer["text"] is None:
            return None
        head, *lines = answer["text"].encode("latin-1").decode().split("\n")[:-1]
        fields = dict(line.split("=", 1) for line in lines)
        return {key: unquote(value) for key, value in fields.items()} | {
            "verb": head.removeprefix("NODEMGR/1 ")
        }

    def expect(self, verb: str, timeout_s: float = WAIT_LIMIT_S) -> dict[str, str]:
        """The next message of this verb; WAITs before it are skipped, anything else fails."""
        while True:
            message = self.receive(timeout_s)
            assert message is not None, f"no {verb} came"
            if message["verb"] == verb:
                return message
            assert message["verb"] in ("WAIT", "NOTE"), f"{message} instead of {verb}"

    # -- the life of a lease --

    def ask(self, gpus: int | None = None, *, rid: int | None = None, **fields: object) -> int:
        """ACQUIRE; returns its rid."""
        rid = rid or next(_rids)
        self.send("ACQUIRE", rid=rid, task=self.token, gpus=gpus, **fields)
        return rid

    def acquire(self, gpus: int | None = None, **fields: object) -> dict[str, str]:
        """A lease, granted."""
        self.ask(gpus, **fields)
        self.grant = self.expect("GRANT")
        return self.grant

    def rejoin(self, *, with_fds: bool = True) -> None:
        self.send(
            "REJOIN", rid=next(_rids), task=self.token, lease=self.grant["lease"],
            slot=self.grant["slot"],
            generation=self.grant["generation"], with_fds=with_fds,
        )  # fmt: skip

    def beat(self) -> None:
        self.send("BEAT", task=self.token)

    def raise_word(self, count: int) -> None:
        """A beat in the ledger."""
        self.order(
            "raise_word",
            slot=int(self.grant["slot"]),
            generation=int(self.grant["generation"]),
            count=count,
        )

    def raise_word_every(self, period_s: float) -> None:
        self.order(
            "raise_word_every",
            slot=int(self.grant["slot"]),
            generation=int(self.grant["generation"]),
            period_s=period_s,
        )

    def release(self) -> None:
        self.send("RELEASE", rid=next(_rids), task=self.token)
        self.expect("ACK")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
