"""Watched programs in forks of one process that has imported their framework.

Each program starts as under `nodemgr predict`, without the seconds of its imports. In each file
that uses this, one test starts Python itself.

Knows: the import hook's file, the form of `Watched`. Must not know: the programs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "sitecustomize"
PERTURB = "165"
"""Freed memory has this pattern: a finalizer that uses it fails."""


class Forks:
    """The process. A program that does not end within `limit_s` fails its test."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float) -> None:
        self._process, self._limit_s = process, limit_s

    def run(self, program: Path, before: str = "") -> Any:
        """`before`: code that is run in front of the framework's adaption."""
        from client_plugin.prediction import outcome
        from client_plugin.prediction.watch import Watched, last_line

        with tempfile.TemporaryDirectory() as scratch:
            order = {"program": str(program), "before": before, "scratch": scratch}
            status = self._ask(json.dumps(order))
            texts = [(Path(scratch) / name).read_text() for name in ("stderr", "stdout")]
            return Watched(outcome.read_all(scratch), status, last_line(texts), [], "")

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], self._limit_s)[0]:
            raise AssertionError(f"the program did not end within {self._limit_s} s")
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def forks(*modules: str, limit_s: float) -> Iterator[Forks]:
    variables = {
        **os.environ, "PYTHONPATH": str(HOOK), "NODEMGR_OFF": "1", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1", "MALLOC_PERTURB_": PERTURB,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, __file__, *modules], env=variables, text=True, cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield Forks(process, limit_s)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # a program that did not end, too


def _serve() -> None:
    """Fork for each order on stdin. Returns in the child alone, whose program has then ended."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
            return
        print(os.waitpid(child, 0)[1], flush=True)


def _become(order: dict[str, str]) -> None:
    """Exceptions of the program are this process's own, as those of `python PROGRAM` are."""
    sources = [os.open(os.devnull, os.O_RDONLY)]
    sources += [os.open(f"{order['scratch']}/{name}", os.O_WRONLY | os.O_CREAT)
                for name in ("stdout", "stderr")]  # fmt: skip
    for stream, source in enumerate(sources):
        os.dup2(source, stream)
    os.environ["NODEMGR_PREDICT"] = order["scratch"]
    os.environ["NODEMGR_PREDICT_CONFINED"] = "1"
    directory = os.path.dirname(order["program"])
    os.chdir(directory)
    sys.path[0], sys.argv = directory, [order["program"]]
    exec(order["before"], {})
    spec: Any = importlib.util.spec_from_file_location("hook", HOOK / "sitecustomize.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    for name, adapter in hook.WATCHED.items():
        if name in sys.modules:
            hook.load_hook().adapt_loaded(sys.modules[name], adapter)
    runpy.run_path(order["program"], run_name="__main__")


if __name__ == "__main__":
    _serve()
