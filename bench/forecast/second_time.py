"""The time by which `submit` recognises a command: its key, and the modules of its earlier runs.

`python bench/forecast/second_time.py`: medians of 200 calls in this process, beside an empty call
of stat as the reference. The modules are 500 files, which is the most.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from client_plugin.prediction import closure
from client_plugin.verbs.launch.recognition import recognised

CALLS = 200
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
        print(f"one stat               {median_ms(lambda: os.stat('train.py')):.4f} ms")
        print(f"key, Python's script   {median_ms(lambda: recognised(command, command[0])):.2f} ms")
        print(
            "key, a line of --from  "
            f"{median_ms(lambda: recognised(command, command[0], seen)):.2f} ms"
        )
        print(f"key, a shell's line    {median_ms(lambda: recognised(shell, shell[0])):.2f} ms")
        print(f"{FILES} modules            {median_ms(lambda: closure.holds(rows)):.2f} ms")


if __name__ == "__main__":
    main()
