"""`nodemgr head …` and `nodemgr node …` with a real head, which is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.limits import WAIT_LIMIT_S


class Program:
    """A head in a directory of its own, and the command line beside it."""

    def __init__(self, path: Path) -> None:
        self.directory, self.run_dir = path / "head", path / "run"
        self.environ = os.environ | {
            "NODEMGR_HEAD_DIR": str(self.directory),
            "NODEMGR_HEAD_RUN_DIR": str(self.run_dir),
        }
        self.environ.pop("NODEMGR_RUN_DIR", None)

    def says(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "nodemgr", *words],
            capture_output=True, text=True, env=self.environ, timeout=WAIT_LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def serves(self) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "nodemgr", "head", "serve", "--dir", str(self.directory)],
            env=self.environ, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            self.line = process.stderr.readline()
            yield process
        finally:
            process.kill()
            process.communicate()


def test_a_head_from_setup_to_restore(tmp_path: Path) -> None:
    head = Program(tmp_path)
    assert "no head's directory" in head.says("head", "serve", code=1)
    made = head.says("head", "setup", "--dir", str(head.directory), "--name", "hq")
    assert "no address" in made
    head.says("head", "setup", "--dir", str(head.directory), "--address", "nonsense", code=2)
    head.says("head", "setup", "--dir", str(head.directory), "--address", "127.0.0.1:1", code=0)
    settings = head.directory / "settings.json"
    settings.write_text(settings.read_text().replace("127.0.0.1:1", "127.0.0.1:0"))
    with head.serves() as process:
        assert "nodes reach it at 127.0.0.1:" in head.line
        assert "keeps its state" in head.says("head", "restore", code=1)
        assert "No node has joined" in head.says("node", "list")
        node = str(tmp_path / "node")  # as around a job, or of a user's own manager
        head.environ["NODEMGR_RUN_DIR"] = node
        assert "No node has joined" in head.says("node", "list")
        head.says("node", "list", "--run-dir", f"{node}-2", code=69)
        quota = head.says("quota", "set", "ann", "--cluster", "--gpus", "8", "--per-node", "2")
        assert quota.splitlines()[1].split()[:4] == ["ann", "8", "2", "0"]
        assert len(head.says("head", "word", "gn1").strip()) > 40
        assert "gn1 is no node of this cluster" in head.says("node", "drain", "gn1", code=1)
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_LIMIT_S)
    with head.serves() as process:
        assert "ann" in head.says("quota", "set", "ann", "--cluster", "--gpus", "9")
        head.says("head", "copy", str(tmp_path / "copy"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_LIMIT_S) == 0
    assert "generation 2" in head.says("head", "restore", str(tmp_path / "copy"))
    with head.serves():
        assert "(generation 2) is ready" in head.line
        assert "9" in head.says("quota", "set", "ann", "--cluster", "--gpus", "9")


def test_doctor_at_the_head(tmp_path: Path) -> None:
    """A head that does not run has the head's remedy; its port and Slurm's site are looked at."""
    head = Program(tmp_path)
    head.environ["NODEMGR_STATE_DIR"] = str(tmp_path / "state")
    head.says("head", "setup", "--dir", str(head.directory), "--address", "127.0.0.1:1")
    for words, code in (("head", "doctor"), 1), (("node", "list"), 69), (("head", "word", "a"), 69):
        said = head.says(*words, code=code)
        assert "no head answers on" in said
        assert "systemctl start nodemgr-head" in said
        assert "nodemgr serve" not in said
    other = str(tmp_path / "run: other")
    (row,) = json.loads(head.says("head", "doctor", "--run-dir", other, "--json", code=1))["checks"]
    assert row["detail"] == f"no head answers on {other}"
    assert row["cure"].startswith("start it: nodemgr head serve")
    settings = head.directory / "settings.json"
    settings.write_text(settings.read_text().replace("127.0.0.1:1", "127.0.0.1:0"))
    with head.serves():
        said = head.says("head", "doctor", code=1)
        assert re.search(r"^ok +port +127.0.0.1:\d+$", said, re.MULTILINE)
        assert "no node has joined" in said
        pool = json.loads(settings.read_text()) | {"pool": {"partition": "gpu"}}
        settings.write_text(json.dumps(pool))
        head.environ["PATH"] = str(tmp_path)
        assert "sinfo cannot be run" in head.says("head", "doctor", code=1)


def test_packets_that_no_head_takes_cost_no_other_order(tmp_path: Path) -> None:
    head = Program(tmp_path)
    head.says("head", "setup", "--dir", str(head.directory), "--name", "hq")
    with head.serves(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(WAIT_LIMIT_S)
        stranger.connect(str(head.run_dir / "control.sock"))
        for packet in (
            b"nonsense",
            b"NODEMGR/1 ACQUIRE\nrid=1\ntask=x\nworld=1\n",
            b"NODEMGR/1 ASK\nrid=2\nwhat=node_word\nargument=gn1\n",
            b'NODEMGR/1 ASK\nrid=3\nwhat=order\nargument={"verb": "node_word", "args": [1]}\n',
            b'NODEMGR/1 ASK\nrid=4\nwhat=order\nargument={"verb": "sheet"}\n',
        ):
            stranger.send(packet)
        said = b"".join(stranger.recv(65_536) for _ in range(3)).decode()
        assert [said.count(f"rid={rid}\n") for rid in (2, 3, 4)] == [1, 1, 1], said
        assert "must be an object" in said
        assert "No node" in head.says("node", "list")
