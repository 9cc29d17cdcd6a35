"""The training process: reads samples, trains the networks, writes the file of weights.

    python -m nodemgr.edge.forecast.process WEIGHTS < SAMPLES

Knows: its input, a sample in each line; the file that it replaces. Must not know: the manager's
state. It prints one line if it cannot write the file. It has no rights beyond its user's, the
lowest priority, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from nodemgr.core.forecast import learning, network, samples
from nodemgr.edge.host import privileges


def main(path: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    privileges.keep_only(())
    privileges.end_with_parent()
    _give_way()
    found = [samples.parse(line) for line in sys.stdin]
    body = learning.train([sample for sample in found if sample is not None])
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    network.parse(text)  # a file that the manager would refuse replaces none
    try:
        replace(Path(path), text)
    except OSError as error:
        print(f"{path} cannot be written ({error.strerror})")
        return 1
    return 0


def _give_way() -> None:
    os.nice(19)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def replace(path: Path, text: str) -> None:
    """The file has the old text or the new one, whenever this process or the node ends."""
    draft = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()  # a full disk gets its room back
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
