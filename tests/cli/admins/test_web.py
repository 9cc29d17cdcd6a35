"""`nodemgr web` and `nodemgr serve --web`, as administrators and users type them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import ROOT
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.support.web import Site


@pytest.fixture(scope="module")
def manager() -> Iterator[Manager]:
    manager = Manager("2x16GiB", options=["--web", "127.0.0.1:0"]).start()
    for env in ("alice", "bob"):
        manager.quota(env, 1)
    yield manager
    manager.close()


def nodemgr(manager: Manager, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NODEMGR_")}
    environment = {**kept, "NODEMGR_RUN_DIR": str(manager.run_dir), **variables}
    return subprocess.run(
        [sys.executable, "-m", "nodemgr", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )


def in_env(manager: Manager, env: str, *words: str) -> subprocess.CompletedProcess[str]:
    """As a program in the environment calls it."""
    return nodemgr(manager, *words, NODEMGR_RUN_DIR="", NODEMGR_ENV_DIR=str(manager.env_dir(env)))


def site(manager: Manager) -> Site:
    return Site(re.findall(r"web page at (http://\S+)", manager.log)[-1])


def test_a_token_is_printed_alone_listed_and_revoked(manager: Manager) -> None:
    made = nodemgr(manager, "web", "token", "--env", "alice", "--for", "1h")
    assert (made.returncode, made.stderr) == (0, "")
    token = made.stdout.removesuffix("\n")
    assert re.fullmatch(r"nmw-w\d+-[\w-]{43}", token)
    told = site(manager).ask("api/session", token=token).json()
    assert (told["scope"], told["env"]) == ("env", "alice")
    listed = nodemgr(manager, "web", "tokens", "--json")
    row = json.loads(listed.stdout)["tokens"][-1]
    assert (row["id"], row["env"], row["admin"]) == (told["token"], "alice", False)
    assert token not in listed.stdout + nodemgr(manager, "web", "tokens").stdout
    assert nodemgr(manager, "web", "revoke", row["id"]).returncode == 0
    assert site(manager).ask("api/session", token=token).refusal == (401, "token")


def test_a_user_makes_and_revokes_tokens_of_the_own_env(manager: Manager) -> None:
    token = in_env(manager, "bob", "web", "token").stdout.strip()
    told = site(manager).ask("api/session", token=token).json()
    assert (told["scope"], told["env"]) == ("env", "bob")
    others = nodemgr(manager, "web", "token", "--env", "alice", "--json")
    theirs = json.loads(others.stdout)["id"]
    listed = json.loads(in_env(manager, "bob", "web", "tokens", "--json").stdout)["tokens"]
    assert {row["env"] for row in listed} == {"bob"}
    refused = in_env(manager, "bob", "web", "revoke", theirs)
    assert refused.returncode == 1
    assert f"bob has no token '{theirs}'" in refused.stderr
    assert in_env(manager, "bob", "web", "revoke", told["token"]).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("token",), 2, "say --env ENV or --admin"),
        (("token", "--env", "alice", "--admin"), 2, "say --env ENV or --admin"),
        (("token", "--env", "nosuch"), 77, "no environment 'nosuch'"),
        (("token", "--env", "alice", "--for", "1s"), 2, "at least 1min and at most 90d"),
        (("token", "--env", "alice", "--for", "100d"), 2, "at least 1min and at most 90d"),
        (("token", "--env", "alice", "--for", "1000d"), 2, "at least 1min and at most 90d"),
        (("token", "--env", "alice", "--for", "soon"), 2, "soon"),
        (("revoke", "w999999"), 1, "there is no token 'w999999'"),
        (("revoke", "\x1b[31m"), 1, "there is no token"),
    ],
)
def test_a_mistake_is_one_line(
    manager: Manager, words: tuple[str, ...], code: int, said: str
) -> None:
    refused = nodemgr(manager, "web", *words)
    assert refused.returncode == code, refused.stderr
    assert said in refused.stderr
    assert "\x1b" not in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--web", "8088"), "must be HOST:PORT"),
        (("--web", "127.0.0.1:8088/x"), "must be HOST:PORT"),
        (("--web", "127.0.0.1:0", "--web-host", "http://x"), "is no host name"),
        (("--web", "127.0.0.1:0", "--web-base", "/a/../b"), "is no path of a site"),
        (("--web", "127.0.0.1:0", "--web-base", "a"), "is no path of a site"),
        (("--web", "127.0.0.1:0", "--web-base", "/<script>"), "is no path of a site"),
    ],
)
def test_a_bad_address_is_one_line(manager: Manager, options: tuple[str, ...], said: str) -> None:
    refused = nodemgr(manager, "serve", "--simulate", "1x16GiB", *options)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


WITHOUT_TORNADO = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "tornado" else find(name, *more)
from nodemgr.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("words", [("serve", "--web", "127.0.0.1:0"), ("web", "page")])
def test_without_the_extra_the_page_is_refused_by_its_name(
    manager: Manager, words: tuple[str, ...]
) -> None:
    refused = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORNADO, *words],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert refused.returncode != 0
    assert f"cd {ROOT} && {sys.executable} -m pip install -e '.[faces]'" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
