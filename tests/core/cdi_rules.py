"""The rules of a CDI file, from the published specification, for tests.

Which versions there are, which fields an object may have, how names are spelled, and which field or
name needs which version.
"""

from __future__ import annotations

import re
from typing import Any

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
VENDOR = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
CLASS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
HOOK_NAMES = {
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
}
# Object -> its fields: (type, required, the version that brought it)
FIELDS: dict[str, dict[str, tuple[type, bool, str]]] = {
    "spec": {
        "cdiVersion": (str, True, "0.3.0"), "kind": (str, True, "0.3.0"),
        "devices": (list, True, "0.3.0"),
        "containerEdits": (dict, False, "0.3.0"), "annotations": (dict, False, "0.6.0"),
    },
    "device": {"name": (str, True, "0.3.0"), "containerEdits": (dict, True, "0.3.0"),
        "annotations": (dict, False, "0.6.0")},
    "edits": {
        "env": (list, False, "0.3.0"), "deviceNodes": (list, False, "0.3.0"),
        "mounts": (list, False, "0.3.0"),
        "hooks": (list, False, "0.3.0"), "intelRdt": (dict, False, "0.7.0"),
        "additionalGids": (list, False, "0.7.0"),
    },
    "node": {
        "path": (str, True, "0.3.0"), "hostPath": (str, False, "0.5.0"),
        "type": (str, False, "0.3.0"),
        "major": (int, False, "0.3.0"), "minor": (int, False, "0.3.0"),
        "fileMode": (int, False, "0.3.0"),
        "permissions": (str, False, "0.3.0"), "uid": (int, False, "0.3.0"),
        "gid": (int, False, "0.3.0"),
    },
    "mount": {
        "hostPath": (str, True, "0.3.0"), "containerPath": (str, True, "0.3.0"),
        "options": (list, False, "0.3.0"),
        "type": (str, False, "0.4.0"),
    },
    "hook": {
        "hookName": (str, True, "0.3.0"), "path": (str, True, "0.3.0"),
        "args": (list, False, "0.3.0"),
        "env": (list, False, "0.3.0"), "timeout": (int, False, "0.3.0"),
    },
}  # fmt: skip


def check(spec: dict[str, Any]) -> str:
    """Raises AssertionError where a rule is broken; returns the lowest version that suffices."""
    needed = [_fields("spec", spec)]
    assert spec["cdiVersion"] in VERSIONS
    vendor, slash, kind_class = spec["kind"].partition("/")
    assert slash
    assert VENDOR.fullmatch(vendor)
    assert vendor[-1].isalnum()
    assert CLASS.fullmatch(kind_class)
    assert kind_class[-1].isalnum()
    names = [device["name"] for device in spec["devices"]]
    assert names, "a file without a device is refused"
    assert len(set(names)) == len(names)
    for device in spec["devices"]:
        assert DEVICE.fullmatch(device["name"]), device["name"]
        assert device["name"][-1].isalnum(), device["name"]
        assert any(device["containerEdits"].values()), "a device that edits nothing is refused"
        needed += [_fields("device", device), _edits(device["containerEdits"])]
        needed += ["0.3.0" if device["name"][0].isalpha() else "0.5.0"]
    needed.append(_edits(spec.get("containerEdits", {})))
    lowest = max(needed, key=VERSIONS.index)
    assert VERSIONS.index(spec["cdiVersion"]) >= VERSIONS.index(lowest)
    return lowest


def _fields(kind: str, row: dict[str, Any]) -> str:
    table = FIELDS[kind]
    assert row.keys() <= table.keys(), f"{kind}: {row.keys() - table.keys()} is no field"
    for name, (wanted, required, _) in table.items():
        assert not required or name in row, f"{kind}: {name} is missing"
        assert name not in row or isinstance(row[name], wanted), (
            f"{kind}: {name} is no {wanted.__name__}"
        )
    return max((table[name][2] for name in row), key=VERSIONS.index, default="0.3.0")


def _edits(edits: dict[str, Any]) -> str:
    needed = [_fields("edits", edits)]
    for kind, key in (("node", "deviceNodes"), ("mount", "mounts"), ("hook", "hooks")):
        needed += [_fields(kind, row) for row in edits.get(key, ())]
    for node in edits.get("deviceNodes", ()):
        assert node["path"].startswith("/dev/")
    for mount in edits.get("mounts", ()):
        assert mount["hostPath"].startswith("/")
        assert mount["containerPath"].startswith("/")
        assert all(isinstance(option, str) and option for option in mount.get("options", ()))
    for hook in edits.get("hooks", ()):
        assert hook["hookName"] in HOOK_NAMES
        assert hook["path"].startswith("/")
        assert all(isinstance(argument, str) for argument in hook.get("args", ()))
    for variable in edits.get("env", ()):
        assert re.fullmatch(r"[^=]+=.*", variable)
    return max(needed, key=VERSIONS.index)
