"""The web page as a unit of its own, on a machine with systemd."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.service.booted import Booted, unusable
from tests.service.test_service_unit import NODEMGR, PATHS, PREPARE
from tests.support.web import Site

PORT = 18_188
PREPARE_WEB = f"""{PREPARE}
printf 'web = "127.0.0.1:{PORT}"\\n' >> /etc/nodemgr/config.toml
chmod 0755 /root
mkdir -p /etc/systemd/system/nodemgr-web.service.d
printf '[Unit]\\nDefaultDependencies=no\\n[Service]\\nPrivateDevices=no\\n' \\
    > /etc/systemd/system/nodemgr-web.service.d/test.conf
printf 'BindReadOnlyPaths={PATHS}\\n' >> /etc/systemd/system/nodemgr-web.service.d/test.conf
"""
"""The interpreter may lie below /root, which is closed to the user of the service.

In a namespace no device node can be made.
"""

pytestmark = pytest.mark.skipif(unusable() is not None, reason=str(unusable()))


@pytest.fixture
def machine() -> Iterator[Booted]:
    try:
        machine = Booted(PREPARE_WEB)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield machine
    machine.close()


def show(machine: Booted, what: str) -> str:
    words = ("systemctl", "show", "nodemgr-web", f"--property={what}", "--value")
    return machine.run(*words).strip()


@pytest.mark.slow
def test_the_page_is_a_unit_without_rights(machine: Booted) -> None:
    machine.run("systemctl", "start", "nodemgr", check=False)  # waits until it is there
    machine.run("systemctl", "start", "nodemgr-web", check=False)
    assert show(machine, "ActiveState") == "active", machine.run(
        "systemctl", "status", "nodemgr-web", check=False
    )
    site = Site(f"http://127.0.0.1:{PORT}/")
    until_it_answers(site)
    machine.run(NODEMGR, "env", "create", "alice", "--gpus", "1")
    token = machine.run(NODEMGR, "web", "token", "--env", "alice").strip()
    assert site.ask("api/session", token=token).json()["env"] == "alice"

    status = machine.run("cat", f"/proc/{show(machine, 'MainPID')}/status")
    assert re.search(r"^CapEff:\t0{16}$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    uids = re.search(r"^Uid:\t(\d+)\t", status, re.MULTILINE)
    assert uids is not None
    assert 61_184 <= int(uids[1]) <= 65_519
    socket = machine.run("stat", "-c", "%a %U %G", "/run/nodemgr/web/views").strip()
    assert socket == "660 root nodemgr-page"

    killed = show(machine, "MainPID")
    machine.run("kill", "-KILL", killed)
    while show(machine, "MainPID") in (killed, "0"):
        pass
    until_it_answers(site)
    machine.run("systemctl", "restart", "nodemgr")
    until_it_answers(site)
    assert site.ask("api/session", token=token).json()["env"] == "alice"
    machine.run("systemctl", "stop", "nodemgr")
    assert show(machine, "ActiveState") == "inactive"


def until_it_answers(site: Site) -> None:
    while True:
        try:
            if site.ask("healthz").json() == {"manager": "here"}:
                return
        except ConnectionError:
            pass
