"""The CDI file obeys the specification's rules (cdi_rules.py) for every possible env."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.views import cdi
from nodemgr.paths import is_env_name
from tests.core import cdi_rules
from tests.support.examples import examples

KIND = "nodemgr.local/env"
HOOK_LIMIT_S = 20
COMMON = cdi.Edits(
    (cdi.Mount("/n/client_plugin", "/opt/nodemgr/client_plugin"),),
    ("/dev/nvidia0", "/dev/nvidiactl"),
)
HOOK = cdi.Hook("createRuntime", "/usr/bin/gate", ("gate", "shut"))
ENV_NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True).filter(is_env_name)


def device(name: str, *hooks: cdi.Hook) -> cdi.CdiDevice:
    return cdi.CdiDevice(
        name,
        cdi.Edits((cdi.Mount(f"/run/nodemgr/containers/{name}", "/run/nodemgr-env"),), hooks=hooks),
    )


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ENV_NAMES, min_size=1, unique=True))
def test_every_file_keeps_the_rules_and_names_the_lowest_version(names: list[str]) -> None:
    fit = [name for name in names if cdi.is_device_name(name)]
    assert all(name[-1] in "._-" for name in set(names) - set(fit))
    if fit:
        spec = json.loads(cdi.document(KIND, COMMON, [device(name, HOOK) for name in fit]))
        assert spec["cdiVersion"] == cdi_rules.check(spec)


def test_a_device_is_its_envs_directory_and_hook_and_what_all_get() -> None:
    spec = json.loads(cdi.document(KIND, COMMON, [device("alice", HOOK), device("bob")]))
    assert spec["kind"] == KIND
    alice, bob = spec["devices"]
    assert alice["containerEdits"]["mounts"] == [
        {
            "hostPath": "/run/nodemgr/containers/alice",
            "containerPath": "/run/nodemgr-env",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
    ]
    assert alice["containerEdits"]["hooks"] == [
        {"hookName": "createRuntime", "path": "/usr/bin/gate", "args": ["gate", "shut"]}
    ]
    assert "hooks" not in bob["containerEdits"]
    assert spec["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0"},
        {"path": "/dev/nvidiactl"},
    ]


def test_a_node_that_the_host_has_not_says_its_number() -> None:
    edits = cdi.Edits(numbered_nodes=(cdi.NumberedNode("/dev/nvidia1", 195, 1),))
    spec = json.loads(cdi.document(KIND, COMMON, [cdi.CdiDevice("alice", edits)]))
    assert spec["cdiVersion"] == cdi_rules.check(spec)
    (node,) = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert node == {
        "path": "/dev/nvidia1",
        "type": "c",
        "major": 195,
        "minor": 1,
        "fileMode": 0o666,
    }


def test_a_hook_that_does_not_end_is_given_up() -> None:
    edits = cdi.Edits(hooks=(cdi.Hook("createRuntime", "/usr/bin/gate", timeout_s=HOOK_LIMIT_S),))
    spec = json.loads(cdi.document(KIND, COMMON, [cdi.CdiDevice("alice", edits)]))
    assert cdi_rules.check(spec)
    assert spec["devices"][0]["containerEdits"]["hooks"] == [
        {"hookName": "createRuntime", "path": "/usr/bin/gate", "timeout": 20}
    ]


def test_only_what_is_written_to_is_mounted_writable() -> None:
    common = cdi.Edits((cdi.Mount("/n/node.state", "/opt/nodemgr/sim/node.state", writable=True),))
    (mount,) = json.loads(cdi.document(KIND, common, [device("alice")]))["containerEdits"]["mounts"]
    assert mount["options"] == ["rw", "nosuid", "nodev", "bind", "noexec"]


def test_no_variable_is_injected() -> None:
    """They are lost under exec, sudo and env -i."""
    assert '"env"' not in cdi.document(KIND, COMMON, [device("alice", HOOK)]).replace(KIND, "")


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "nodemgr",
        "nodemgr/",
        "/env",
        "1node/env",
        "node./env",
        "node/env.x",
        "node/e v",
        "node/env/x",
    ],
)
def test_what_is_no_kind_is_refused(kind: str) -> None:
    assert not cdi.is_kind(kind)


def test_the_file_is_called_by_its_vendor() -> None:
    assert cdi.is_kind(KIND)
    assert cdi.file_name(KIND) == "nodemgr.json"
