"""How fast a job's output gets into its log, beside a bare pipe and a bare file.

    python bench/job_output.py [--mib 512] [--rounds 5]

Each writer is the same `dd`. The bare pipe ends in a reader that discards the data. The bare file
is a plain redirection to the disk of the logs. `bounded` has the default of job_log_bytes: the
middle of the output is dropped while the job writes.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from arguments import parse
from node import finish, table
from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.executor.attempt_directory import AttemptFiles
from nodemgr.edge.executor.interface import RunOrder
from nodemgr.edge.executor.launcher import PROGRAM
from nodemgr.edge.kernel.processes import boot_id

MIB = 2**20
BOUND_BYTES = 2**28
USER = pwd.getpwuid(os.geteuid())


def writer(mib: int) -> tuple[str, ...]:
    return "dd", "if=/dev/zero", "bs=65536", f"count={mib * 16}", "status=none"


def pipe_s(directory: Path, mib: int) -> float:
    reader, output = os.pipe()
    began = time.monotonic()
    with subprocess.Popen(writer(mib), stdout=output) as job:
        os.close(output)
        while os.read(reader, 65536):
            pass
        job.wait()
    os.close(reader)
    return time.monotonic() - began


def file_s(directory: Path, mib: int) -> float:
    began = time.monotonic()
    with open(directory / "plain", "wb") as output:
        subprocess.run(writer(mib), stdout=output, check=True)
    took_s = time.monotonic() - began
    (directory / "plain").unlink()
    return took_s


def job_s(directory: Path, mib: int, log_bytes: int) -> float:
    order = RunOrder(
        "j1",
        1,
        "bench",
        RunSpec("writer", 0, None, None),
        (),
        USER.pw_name,
        USER.pw_uid,
        USER.pw_gid,
        writer(mib),
        "/",
        ("PATH=/usr/bin:/bin",),
    )
    files = AttemptFiles(directory, "j1", 1)
    files.write(order, 1_000, boot_id(), log_bytes)
    began = time.monotonic()
    subprocess.run([PROGRAM, "supervise", files.directory], check=True)
    took_s = time.monotonic() - began
    if files.directory.joinpath("log").stat().st_size != mib * MIB:
        raise SystemExit("the log does not have what the job wrote")
    files.remove()
    return took_s


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    given = parse(parser, mib=2, rounds=1)
    directory = Path(tempfile.mkdtemp(prefix="nmb", dir="/var/tmp"))
    ways = {
        "bare file": file_s, "bare pipe": pipe_s, "job's log": lambda at, mib: job_s(at, mib, 0),
        "job's log, bounded": lambda at, mib: job_s(at, mib, BOUND_BYTES),
    }  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            rates[name].append(given.mib / way(directory, given.mib))
    shutil.rmtree(directory)
    table(f"{given.mib} MiB of output", list(rates.items()), "MiB/s", "bare file")
    ratio = statistics.median(rates["job's log"]) / statistics.median(rates["bare file"])
    print(f"median, a job's log beside a bare file: {ratio:.2f} of its rate")
    return given


if __name__ == "__main__":
    finish(main())
