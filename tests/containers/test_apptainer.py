"""The binds that docs/containers.md gives for Apptainer bring the client into an image.

Made by podman as volumes, because Debian 12 has no Apptainer: no device of ours, no variable.
"""

from __future__ import annotations

import json
import re
import subprocess

from tests.containers.podman import Containers
from tests.support.manager import HOLD, ROOT, Manager

GIB = 1 << 30
BLOCK = re.compile(r"```sh\n(client=.*?\n)(apptainer exec.*?)```", re.DOTALL)


def volumes(node: Manager) -> list[str]:
    """Of the page, at the paths of this node."""
    page = (
        (ROOT / "docs" / "containers.md").read_text().replace("/run/nodemgr/", f"{node.run_dir}/")
    )
    found = BLOCK.search(page)
    assert found is not None
    line, command = found.groups()
    client = subprocess.run(
        ["sh", "-c", f"{line}echo $client"], capture_output=True, text=True, check=True
    ).stdout.strip()
    binds = re.findall(r"--bind (\S+)", command.replace("$client", client))
    assert len(binds) == 4
    simulator = node.run_dir / "sim"  # in the place of --nv
    return [
        *(f"--volume={bind}:ro" for bind in (*binds, f"{simulator}:{simulator}")),
        f"--env=LD_LIBRARY_PATH={simulator}",
    ]


def test_the_binds_of_the_page_bring_the_client(node: Manager, containers: Containers) -> None:
    node.quota("alice", 1, memory_bytes=4 * GIB)
    box = containers.start(None, *volumes(node))
    code, told = containers.execute(box, str(HOLD), "-s", "0", "-b", str(GIB))
    assert code == 0
    found = json.loads(told)
    assert (found["devices"], found["total_bytes"]) == (1, 4 * GIB)
    assert "by quota" in containers.execute(box, str(HOLD), "-s", "0", "-b", str(5 * GIB))[1]


def test_without_them_a_program_sees_all_gpus(node: Manager, containers: Containers) -> None:
    node.quota("alice", 1, memory_bytes=4 * GIB)
    box = containers.start(None, *volumes(node)[-2:])
    found = json.loads(containers.execute(box, str(HOLD), "-s", "0")[1])
    assert found["devices"] == len(node.status()["gpus"]) > 1
