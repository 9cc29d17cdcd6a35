"""Every bench runs in its short form and prints its table, so that none rots.

Its figures are no test's business.
"""

from __future__ import annotations

import csv
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodemgr.core.forecast import samples
from nodemgr.core.forecast.samples import Sample
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import features, sample
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT

BENCH = ROOT / "bench"
PARTS = frozenset(
    {
        "arguments",
        "core_model",
        "elastic_model",
        "fake_gpu",
        "keras_zoo",
        "managed",
        "node",
        "optimum",
        "placement_page",
        "processor_kernels",
        "steps",
        "timed_manager",
        "torchrun_group",
        "zoo",
    }
)
"""Helpers that the programs share."""
PROGRAMS = sorted(
    path.relative_to(BENCH).with_suffix("").as_posix()
    for path in (*BENCH.glob("*.py"), *BENCH.glob("*/*.py"))
    if path.stem not in PARTS and path.parent.name != "first"  # test_first.py
)
ALL = "learned"
"""It starts the tables' programs, and takes a folder for what they print."""
KEEPING = ("forecast/learning", "forecast/table")
"""The second one reads the file that --keep names from the first."""
FIGURE = r" +[0-9][0-9.,]*"
ROWS = {
    "beats": ["20 tasks hold a lease, [0-9]+ of them are heard of",
        f"packets, bare epoll [+] recv{FIGURE}", f"manager{FIGURE}"],
    "cluster/head": [f"first, [0-9]+ jobs get a node{FIGURE}", f"after 64 ends{FIGURE}{FIGURE}",
        f"report, stored{FIGURE}{FIGURE}", f"an idle head, % of a core{FIGURE}"],
    "cluster/jobs": [f"a job of the cluster{FIGURE}{FIGURE}", f"with a stopped head{FIGURE}",
        f"an idle head with 1 nodes, % of a core{FIGURE}",
        r"8 jobs of 0.2 s over 8 GPUs: [0-9].+; [0-9.]+ messages of the link a job",
        r"a frame of 300 bytes, both ends: [0-9]+ us"],
    "cluster/slurm": [f"skipped: .+|growth of the pool by one node{FIGURE}{FIGURE}",
        f"skipped: .+|the cluster{FIGURE}"],
    "cluster/trace": [f"[0-9]+ jobs begin in{FIGURE} h", r"wait: mean, median, 99 % +[0-9]",
        f"[0-9]+ passes, ms: median, 99 %, worst{FIGURE}{FIGURE}{FIGURE}", f"memory, MiB{FIGURE}"],
    "connect_flood": [f"calm{FIGURE}", f"busy{FIGURE}", f"beside 1 strangers{FIGURE}"],
    "core_step": [f"Acquire.*?{FIGURE}{FIGURE}", f"Match, 10 jobs start{FIGURE}{FIGURE}",
        f"50 jobs behind one lease{FIGURE}"],
    "jobs/denial": [rf"job_withdraw of it{FIGURE}{FIGURE}", rf"busy{FIGURE}{FIGURE}",
        rf"arrays{FIGURE}{FIGURE}"],
    "jobs/limits": [f"start with one{FIGURE}", f"a command is moved{FIGURE}",
        "directories left by 10 jobs: 0"],
    "elastic/changes": [rf"warm: offer to a step on it, three-lines{FIGURE}{FIGURE}",
        rf"leader killed: workers ended, three-lines{FIGURE}{FIGURE}",
        rf"removal: steps lost, three-lines{FIGURE}{FIGURE}"],
    "elastic/published": [r'skipped: .+|accelerate: {"steps made again": \[[0-9]+, [0-9]+\],'],
    "faces/top": [f"top, 80x24{FIGURE}{FIGURE}", f"top, 200x60{FIGURE}{FIGURE}"],
    "elastic/fits": [r'keras, dense: {"resizes": "[0-9]+, [0-9]+", "epochs": 12, "loss"'],
    "forecast/intervals": [rf"known families, seed 0{FIGURE} answers",
        rf"without lstm{FIGURE} answers"],
    "forecast/keras_memory": [rf"vgg 1x16, 128, adam{FIGURE} MiB{FIGURE} MiB",
        r"2 trainings: median error "],
    "forecast/learning": [rf"same families, after 10{FIGURE} %{FIGURE} %{FIGURE} %",
        rf"without lstm{FIGURE} %{FIGURE} %{FIGURE} %"],
    "forecast/memory": [f"resnet{FIGURE}{FIGURE}", f"all{FIGURE}{FIGURE}", "within 15 %: "],
    "forecast/published": ["context [0-9]+ MiB, of 1 rows", "median error ",
        "without a forecast: 0 of 2 rows", "utilisation: not measured"],
    "forecast/scripts": [rf"siamese{FIGURE} MiB{FIGURE} MiB{FIGURE}{FIGURE}"],
    "forecast/second_time": [f"one stat{FIGURE} ms", f"key, Python's script{FIGURE} ms",
        f"500 modules{FIGURE} ms"],
    "forecast/table": [rf"memory, 1 trainings on the processor{FIGURE} %{FIGURE} %",
        "more memory than with the margin of other families alone +[01] of 1",
        "memory of TensorFlow +not measured +not measured",
        "reserved memory, real memory_stats of a GPU +not measured +not measured",
        rf"step time, same families, after 10: roofline{FIGURE} %{FIGURE} %",
        rf"step time, without lstm: nearest{FIGURE} %{FIGURE} %",
        rf"step time, by the first 20 steps{FIGURE} %{FIGURE} %",
        "utilisation, published or own measurements +not measured"],
    "grant_latency": [f"echo [+] commit{FIGURE}{FIGURE}", f"request to grant{FIGURE}{FIGURE}"],
    "idle": [f"imports, then sleep{FIGURE}", f"manager{FIGURE}", f"0 viewers{FIGURE}",
        f"10 viewers{FIGURE}"],
    "job_output": [f"bare file{FIGURE}", f"job's log{FIGURE}", f"job's log, bounded{FIGURE}"],
    "job_start": [f"bare: executed{FIGURE}", f"job: order to news of its end{FIGURE}"],
    "kill_to_grant": [f"kill to pidfd{FIGURE}", f"kill to the next grant{FIGURE}"],
    "log_followers": [f"calm{FIGURE}", f"beside 20 readers{FIGURE}", "a reader got "],
    "learned": [r"placement/waiting --seeds 300: exit code 0, 20[0-9:, -]+load [0-9]+",
        "placement/classes --seeds 300: exit code 0, "],
    "launches/hostile": [f"garbage{FIGURE}{FIGURE}{FIGURE}"],
    "launches/progress_steps": [f"with the hook{FIGURE}{FIGURE}", f"one count{FIGURE}"],
    "launches/shares": [f"bare driver{FIGURE}{FIGURE}", f"gated{FIGURE}{FIGURE}",
        rf"10:90, 50 us both{FIGURE} :{FIGURE}{FIGURE}", rf"alone{FIGURE}{FIGURE}"],
    "launches/suspend": [f"suspend{FIGURE}{FIGURE}", f"resume{FIGURE}{FIGURE}"],
    "launches/turns": [rf"alone, 5 us{FIGURE}{FIGURE}{FIGURE}{FIGURE}",
        rf"10:90, 50 us both{FIGURE} :{FIGURE}{FIGURE}{FIGURE}"],
    "next_start": [f"end to next start{FIGURE}", f"one process{FIGURE}"],
    "trace/day": [rf"rigid{FIGURE} h{FIGURE} h", rf"all elastic{FIGURE} h{FIGURE} h"],
    "trace/replay": ["strictly in order: ", "by priority with backfill: ", f"all{FIGURE}"],
    "placement/classes": [r"latency-sensitive, main: .+ ± ", r"best-effort, .+x 1000 +[-+]",
        r"latency-sensitive, main, no times are known +[-+]"],
    "placement/policies": [rf"equivariant scorer{FIGURE} +[-+]", rf"source.s network{FIGURE} us",
        r"exact optimum, in hindsight +[0-9.]+ +[-+]", r"30 days +[-+][0-9.]+"],
    "placement/waiting": [r"main: a fifth fails 40 times as often +[-+]", r".*x 1000 +[-+]"],
    "queue_operations": [f"WorkQueue +position{FIGURE}{FIGURE}", f"list +position{FIGURE}{FIGURE}"],
    "restart": [f"an empty store{FIGURE}{FIGURE}",
        rf"4 held jobs, files of [0-9]+ MiB{FIGURE}{FIGURE}"],
    "shim_calls": [rf"cuMemAlloc\+cuMemFree, 8 processes{FIGURE}{FIGURE}",
        f"cuLaunchKernel, 4 processes{FIGURE}{FIGURE}",
        f"cuInit, asks for its own lease{FIGURE}{FIGURE}"],
    "startup": [rf"python -c pass +inside{FIGURE}", f"/bin/true +inside{FIGURE}"],
    "submit_rate": [f"nodemgr submit --from -, many in one order{FIGURE}{FIGURE}",
        f"bare SQLite, FULL, one commit each{FIGURE}"],
    "udp_flood": [f"calm{FIGURE}", f"flooded{FIGURE}", "answered: [0-9] of 2 calm"],
    "verbs": [
        rf"{name}{FIGURE}"
        for name in ("python -c pass", "submit", "queue", "status", "logs", "wait", "history",
            "top --once", "run", "quota show", "queue, in a container")
    ],
    "web/page": [f"8 GPUs, 32 tasks{FIGURE}", f"16 GPUs, 800 tasks{FIGURE}"],
    "web/scrape": [rf"values, all environments{FIGURE}{FIGURE}",
        rf"text, all environments{FIGURE}{FIGURE}"],
}  # fmt: skip
"""By program: expressions of lines that its table has."""


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / f"{program}.py"), *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_every_program_has_a_row_here() -> None:
    assert sorted(ROWS) == PROGRAMS


@pytest.mark.slow
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name not in (*KEEPING, ALL)])
def test_the_short_form_ends_well_and_prints_its_table(program: str) -> None:
    ends_well(program)


@pytest.mark.slow
def test_the_table_of_forecasts_takes_the_runs_that_learning_has_kept(tmp_path: Path) -> None:
    """Both measure the same runs: once is enough."""
    for program in KEEPING:
        ends_well(program, "--keep", str(tmp_path / "runs"))


@pytest.mark.slow
def test_all_tables_go_into_a_folder_with_commit_date_and_load(tmp_path: Path) -> None:
    ends_well(ALL, str(tmp_path / "made"))
    files = sorted((tmp_path / "made").iterdir())
    assert [path.name for path in files] == [
        "placement-classes--short.txt",
        "placement-waiting--short.txt",
    ]
    for path in files:
        first, *table, last = path.read_text().splitlines()
        assert re.fullmatch(r"placement/[a-z]+ --short, .*, 20[0-9: -]+, load [0-9]+", first)
        assert re.fullmatch(r"exit code 0, 20[0-9: -]+, load [0-9]+", last)
        assert len(table) > 5


LEARNED = """
import sys
sys.argv[1:] = [sys.argv[1]]
import pathlib, learned
learned.BENCH = pathlib.Path(sys.argv[1])
learned.MEASURED = ("misses", "fails")
learned.COUNTED = ("good 1",)
sys.exit(learned.main())
"""


def test_a_table_that_fails_or_misses_is_named_and_the_others_are_made(tmp_path: Path) -> None:
    miss = "import node, sys; node.against_target('wait', 3, 2, 's'); node.finish({})"
    (tmp_path / "misses.py").write_text(
        f"import sys; sys.path.append({str(BENCH)!r}); import argparse; "
        + miss.format("argparse.Namespace(short=False)")
    )
    (tmp_path / "fails.py").write_text("print('a row'); raise SystemExit('no such table')")
    (tmp_path / "good.py").write_text("print('a row')")
    command = [sys.executable, "-c", LEARNED, str(tmp_path)]
    ended = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.splitlines()[-2:] == [
        "misses: ABOVE the target: wait 3.00 s, at most 2 s",
        "fails: failed: no such table",
    ]
    assert "a row" in (tmp_path / "good1.txt").read_text()


def ends_well(program: str, *options: str) -> None:
    ended = run(program, "--short", *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    for row in ROWS[program]:
        assert any(re.match(row, line) for line in lines), f"no line {row!r} in\n{ended.stdout}"


HOLDS = (
    "import argparse, node; node.against_target('answer', 3, 2, 's');"
    " node.finish(argparse.Namespace(short={short}))"
)


@pytest.mark.parametrize(("short", "code"), [(False, 1), (True, 0)])
def test_a_missed_target_is_printed_and_is_an_exit_status_of_the_whole_run_alone(
    short: bool, code: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HOLDS.format(short=short)],
        cwd=BENCH,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (
        code,
        "ABOVE the target: answer 3.00 s, at most 2 s\n",
    )


NODE_UNTIL_SIGTERM = """
import argparse, sys
import arguments, node
arguments.parse(argparse.ArgumentParser())
with node.Node("1x8GiB") as manager:
    print(manager.pid, flush=True)
    sys.stdin.read()
"""


ELASTIC_UNTIL_SIGTERM = """
import argparse, sys, time
sys.path.append("elastic")
import arguments
from managed import ManagedTask
worker, is_begun = sys.argv.pop(), sys.argv.pop() == "begun"
arguments.parse(argparse.ArgumentParser())
task = ManagedTask(worker)
try:
    if is_begun:
        task.start()
        while not task.workers():
            time.sleep(0.05)
    print(task.node.pid, *(task.workers() if is_begun else ()), flush=True)
    sys.stdin.read()
finally:
    task.close()
"""
WORKER = "import time\ntime.sleep(600)\n"


def ended_at_sigterm(program: str, *words: str) -> tuple[int, list[bool]]:
    """Its exit status, and whether each process that it names has ended with it."""
    bench = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=BENCH,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert bench.stdout is not None
    started = [os.pidfd_open(int(pid)) for pid in bench.stdout.readline().split()]
    bench.terminate()
    bench.communicate()
    # they would live for minutes; the kernel ends them a moment later on a busy machine
    ended = [bool(select.select([process], [], [], WAIT_LIMIT_S)[0]) for process in started]
    for process in started:
        os.close(process)
    return bench.returncode, ended


def test_what_a_program_has_started_ends_with_it_at_sigterm() -> None:
    assert ended_at_sigterm(NODE_UNTIL_SIGTERM) == (128 + signal.SIGTERM, [True])


@pytest.mark.parametrize(("moment", "processes"), [("before", 1), ("begun", 2)])
def test_the_workers_of_an_elastic_training_end_with_it_at_sigterm(
    tmp_path: Path, moment: str, processes: int
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    code, ended = ended_at_sigterm(ELASTIC_UNTIL_SIGTERM, moment, str(tmp_path / "worker.py"))
    assert (code, all(ended)) == (128 + signal.SIGTERM, True)
    assert len(ended) >= processes  # a spare may be there already


def test_a_file_that_is_no_table_of_samples_is_one_line() -> None:
    ended = run("forecast/table", "--measured", __file__)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{__file__} is no table of samples (")
    assert len(ended.stderr.splitlines()) == 1


def test_utilisation_and_memory_are_evaluated_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = [samples.csv_row(task(number)) for number in range(60)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([samples.COLUMNS, *rows])
    code = (
        "import sys; sys.argv[1:] = []; import pathlib, table;"
        f" known = table.read(pathlib.Path({str(path)!r}));"
        " [table.show(line) for line in table.from_file(known)]"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=BENCH / "forecast",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert re.match(r"memory, 60 rows of the file +20.0 % +20.0 %", lines[0])
    assert re.match(r"utilisation, 10 rows: roofline +[0-9.]+ points", lines[1])
    assert re.match(r"utilisation, [0-9]+ rows: learned +[0-9.]+ points", lines[2])


def task(number: int) -> Sample:
    made = sample(of=features(execution=(8 + number % 5, 100, 1_000)))
    percent = 60 + 10 * (number % 2)
    return replace(made, wall_ns=number, utilization_percent=percent)


def test_what_is_missing_is_one_line() -> None:
    ended = run("trace/replay", "/nonexistent.csv.gz")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        2,
        "replay.py: error: name the trace, or set NODEMGR_PHILLY_TRACE",
    )
