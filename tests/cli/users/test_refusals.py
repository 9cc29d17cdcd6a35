"""A refused value is named as the user typed it: the option, and no field of the order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from client_plugin import fields
from client_plugin.ways.refusals import TYPED, refusal
from nodemgr.edge.api.job_operations import ONE_OF_MANY
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.manager import ROOT, Manager

NOT_TYPED = {
    "address", "again", "before", "below", "cwd", "environ", "features", "files", "gid", "head",
    "key", "keys", "leader", "leaves", "left_s", "limit", "models", "number", "offset", "order",
    "pid", "pilot", "recognised", "run_ms", "since", "skip", "tokens", "uid", "umask",
    "until_wall_ns", "user", "variables", "wait", "waited_ms",
}  # fmt: skip
"""Arguments that the verbs fill in by themselves, or give to no user."""
VERBS = sorted(
    path
    for folder in ("client_plugin/verbs/commands", "nodemgr/cli/admins")
    for path in (ROOT / folder).glob("*.py")
)


def test_each_argument_of_an_order_has_the_words_that_a_user_types_for_it() -> None:
    with LocalManager(web="127.0.0.1:0") as local:
        rows = local.service.daemon.verbs.rows.values()
    found = {name for row in rows for name in row.arguments} | set(ONE_OF_MANY)
    assert {"for_ms", "gpus", "time_limit_ms", "rank", "token", "mine"} <= found
    assert found - NOT_TYPED == set(TYPED)


def test_each_of_these_options_is_one_of_a_verb() -> None:
    text = "".join(path.read_text() for path in VERBS)
    options = {word for word in TYPED.values() if word.startswith("--")}
    made = {row.option for row in (*fields.ALL, *fields.members("enter", "nobody"))}
    assert not {option for option in options - made if f'"{option}"' not in text}


def test_an_answer_without_such_an_argument_stays_as_it_is() -> None:
    answer = {"error": "for_ms: too long", "argument": "for_ms", "fault": "too long"}
    assert refusal(answer) == "--for: too long"
    for other in (None, "cwd", "for", 7, ["for_ms"]):
        assert refusal({**answer, "argument": other}) == "for_ms: too long"
    for key in ("argument", "fault"):
        older = {name: value for name, value in answer.items() if name != key}
        assert refusal(older) == "for_ms: too long"


@pytest.fixture(scope="module")
def manager() -> Iterator[Manager]:
    manager = Manager("2x16GiB", options=["--web", "127.0.0.1:0"]).start()
    manager.quota("alice", 1)
    yield manager
    manager.close()


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("web token --env alice --for 0", "--for: a token must be valid for at least 1min"),
        (f"submit --env alice --name {'x' * 65} -- true", "--name: must be a text of at most 64"),
    ],
)
def test_a_refused_value_is_named_by_its_option(manager: Manager, line: str, refused: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "nodemgr", *line.split()],
        env={**os.environ, "NODEMGR_RUN_DIR": str(manager.run_dir)},
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    (said,) = ended.stderr.splitlines()
    assert said.startswith(f"nodemgr: {refused}")
