"""`status --cluster` and `top --cluster` with a real head and real managers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cluster.site import ENV, Site, site
from tests.support.limits import WAIT_LIMIT_S

pytestmark = pytest.mark.slow


def says(made: Site, *words: str) -> str:
    """On the second node."""
    environ = {**os.environ, "NODEMGR_RUN_DIR": str(made.nodes["gn2"].run_dir), "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-m", "nodemgr", *words], env=environ, capture_output=True, text=True,
        timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_of_all_nodes_are_shown_on_each() -> None:
    with site(2, simulate="1x8GiB") as made:
        script, gate = made.gate("gate")
        jobs = made.submit(script, count=2)
        made.until_begun(2)
        (waits,) = made.submit()
        for words in (
            ("status", "--cluster"),
            ("top", "--once", "--cluster"),
            ("top", "--once", "--cluster", "--env", ENV),
        ):
            text = says(made, *words)
            for name in ("gn1:0", "gn2:0", *jobs):
                assert name in text, (words, name, text)
        assert waits in says(made, "top", "--once", "--cluster")
        made.nodes["gn1"].kill()
        gate.touch()


def test_the_output_of_a_job_is_followed_over_its_starts() -> None:
    with site(2, simulate="1x8GiB") as made:
        wait, gate = made.gate("gate")
        once = made.directory / "once"
        again = f"echo begins; {wait}; [ -e {once} ] || {{ touch {once}; exit 3; }}; echo ends"
        (job,) = made.submit(again, name="gn1", max_restarts=1)
        environ = {**os.environ, "NODEMGR_RUN_DIR": str(made.nodes["gn2"].run_dir)}
        with subprocess.Popen(
            [sys.executable, "-m", "nodemgr", "logs", "--follow", job],
            env=environ, stdout=subprocess.PIPE, text=True,
        ) as follows:  # fmt: skip
            assert follows.stdout is not None
            assert follows.stdout.readline() == "begins\n", "while it runs"
            gate.touch()
            assert follows.stdout.read() == "begins\nends\n"
        assert follows.returncode == 0
        assert says(made, "logs", job, "--attempt", "1") == "begins\n"
        assert [line.split()[6] for line in says(made, "history", job).split("\n")[:2]] == [
            "STARTS", "2",
        ]  # fmt: skip
