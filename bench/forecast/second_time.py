"""The time by which `submit` recognises a command: its key, and the modules of its earlier runs.

`python bench/forecast/second_time.py`: medians of 200 calls in this process, beside an empty call
of stat as the reference. The modules are 500 files, which is the most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from client_plugin.prediction import closure
from client_plugin.verbs.launch.recognition import recognised
from node import against_target, finish

CALLS = 200
SUBMIT_MS = 2.0
FILES = 500
ARGUMENTS = ["--epochs", "3", "--lr=0.1", "config.yaml", "data", "--out=runs/a.pt", "resnet50"]


def median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        begun_ns = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun_ns) / 1e6)
    return statistics.median(times)


def main() -> None:
    given = parse(argparse.ArgumentParser(description=__doc__.partition("\n")[0]))
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for folder in ("data", "runs"):
            Path(folder).mkdir()
        Path("train.py").write_text("import net\n" * 1_000)
        Path("config.yaml").write_text("lr: 1\n" * 100)
        rows: list[list[object]] = []
        for number in range(FILES):
            path = Path(name, f"module{number}.py")
            path.write_text("layers = 3\n" * 100)
            status = path.stat()
            known = closure.digest(path.read_bytes())
            rows.append([str(path), status.st_size, status.st_mtime_ns, known])
        command = [sys.executable, "train.py", *ARGUMENTS]
        seen: dict[object, object] = {}
        shell = ["/bin/sh", "-c", "python train.py"]
        key_ms = median_ms(lambda: recognised(command, command[0]))
        print(f"one stat               {median_ms(lambda: os.stat('train.py')):.4f} ms")
        print(f"key, Python's script   {key_ms:.2f} ms")
        print(
            "key, a line of --from  "
            f"{median_ms(lambda: recognised(command, command[0], seen)):.2f} ms"
        )
        print(f"key, a shell's line    {median_ms(lambda: recognised(shell, shell[0])):.2f} ms")
        modules_ms = median_ms(lambda: closure.holds(rows))
        print(f"{FILES} modules            {modules_ms:.2f} ms")
        against_target("key and modules", key_ms + modules_ms, SUBMIT_MS, "ms")
    finish(given)


if __name__ == "__main__":
    main()
