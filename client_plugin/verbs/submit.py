"""`nodemgr submit` inside a container: have a command run in this container when its turn comes.

Knows: the options and what they may be, what of here and now goes with a job. Must not know: how the manager is reached, who starts the
job. Prints the job's id and nothing else on stdout.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from typing import Any, Callable, Dict, List, Set

from client_plugin.verbs import asking, runner, tables

SIZES = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip
DURATIONS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MIN_SIZE_BYTES = 2**20
MAX_ARRAY = 10_000
AGAIN_S, PAUSE_S = 30.0, 0.5
"""So long a submission whose answer was lost is sent again; under its key it is the same job."""
USAGE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127
JOB = re.compile(r"j[0-9]{1,15}(\.[0-9]{1,10})?", re.ASCII)


def _amount(units: Dict[str, int], form: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?\s*([A-Za-z]+)", text.strip(), re.ASCII)
        if match is None or match[3] not in units:
            raise argparse.ArgumentTypeError(f"{text!r}: {form}")
        whole, decimals = match[1], match[2] or ""
        parts: int = 10 ** len(decimals)
        return int(whole + decimals) * units[match[3]] // parts

    return parse


_size_bytes = _amount(SIZES, "write a number with its unit, e.g. 8GiB (2^30) or 8GB (10^9)")
_time_ms = _amount(DURATIONS_MS, "write a number with its unit, e.g. 30s, 10min, 2h, 1d")


def size(text: str) -> int:
    found = _size_bytes(text)
    if found < MIN_SIZE_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1MiB, too small for any GPU program")
    return found


def duration(text: str) -> int:
    found = _time_ms(text)
    if found == 0:
        raise argparse.ArgumentTypeError("a time limit of nothing ends the job before it begins: leave it out for none")
    return found


def count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def jobs(text: str) -> List[str]:
    found = [part.strip() for part in text.split(",")]
    for job in found:
        if JOB.fullmatch(job) is None:
            raise argparse.ArgumentTypeError(f"{job!r} is no job: write ids as `nodemgr queue` shows them: j3,j4")
    return found


def array(text: str) -> List[int]:
    """`0-9,12` as numbers."""
    found: Set[int] = set()
    for part in text.split(","):
        match = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no array: write indices and ranges: 0-9 or 0-9,12")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{part!r} runs backwards: write indices and ranges: 0-9 or 0-9,12")
        if last - first >= MAX_ARRAY or len(found) + last - first >= MAX_ARRAY:
            raise argparse.ArgumentTypeError(f"{text!r} has more than {MAX_ARRAY} elements: submit several arrays")
        found.update(range(first, last + 1))
    return sorted(found)


def run(options: argparse.Namespace) -> int:
    """Raises Refused."""
    command: List[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise asking.Refused("say what is to be run: nodemgr submit [OPTIONS] -- COMMAND", USAGE)
    _check_env(options.env)
    runner.check()
    _check_program(command[0])
    around = {"cwd": _here(), "environ": _environ(options), "umask": _umask()}
    arguments = {"argv": command, **around, "key": os.urandom(16).hex(), **_wishes(options)}
    job: str = _submit(arguments)["job"]
    try:
        print(job, flush=True)
    except OSError:  # a full disk, a reader that left: the job runs all the same
        _say(f"{job} is submitted")
        raise
    finally:
        runner.ensure()
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"nodemgr: {tables.printable(line)}\n")


def _check_env(named: Any) -> None:
    if named is None:
        return
    try:
        own = asking.settings().get("env")
    except OSError:
        return  # the next question says it
    if named != own:
        raise asking.Refused(f"this container is in environment {own}, and its jobs are, too: leave --env out", asking.REFUSED)


def _check_program(name: str) -> None:
    """As a shell finds it."""
    if os.sep in name:
        if not os.path.exists(name):
            raise asking.Refused(f"{name}: not found", NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise asking.Refused(f"{name}: not executable", NOT_EXECUTABLE)
    elif not shutil.which(name):
        if shutil.which(name, mode=os.F_OK):
            raise asking.Refused(f"{name}: not executable", NOT_EXECUTABLE)
        raise asking.Refused(f"{name}: not found in PATH", NOT_FOUND)


def _umask() -> int:
    """There is no way to read it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _here() -> str:
    """The working directory as the shell calls it, where that is the same one."""
    named = os.environ.get("PWD", "")
    try:
        real = os.getcwd()
    except OSError:
        raise asking.Refused("the working directory is gone: change to another one") from None
    try:
        return named if named.startswith("/") and os.path.samefile(named, real) else real
    except OSError:
        return real


def _environ(options: argparse.Namespace) -> List[str]:
    """Our caller's variables: an interpreter in a C locale adds LC_CTYPE to its own, which is nobody else's business."""
    variables = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read()
    except OSError:
        given = b"LC_CTYPE="
    if not given.startswith(b"LC_CTYPE=") and b"\0LC_CTYPE=" not in given:
        variables.pop("LC_CTYPE", None)
    for name, wish in (("NODEMGR_GPUS", options.gpus), ("NODEMGR_MEMORY", options.memory)):
        if wish is not None:
            variables[name] = str(wish)
    return [f"{name}={value}" for name, value in variables.items()]


def _wishes(options: argparse.Namespace) -> Dict[str, Any]:
    wishes = {
        "gpus": options.gpus, "memory_bytes": options.memory, "priority": options.priority, "array": options.array,
        "time_limit_ms": options.time, "max_restarts": options.max_restarts, "name": options.name,
        "after": [job for jobs in options.after or () for job in jobs] or None, "hold": options.hold or None,
    }  # fmt: skip
    return {name: value for name, value in wishes.items() if value is not None}


def _submit(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """One that was lost is asked for again: the key makes it the same submission."""
    end = time.monotonic() + AGAIN_S
    was_sent = False
    while True:
        try:
            return asking.order("job_submit", **arguments)
        except asking.Refused as refused:
            if refused.code != asking.UNREACHABLE or time.monotonic() > end:
                raise
            if not was_sent:
                _say(f"{refused}; asking again")
            was_sent = True
            time.sleep(PAUSE_S)
