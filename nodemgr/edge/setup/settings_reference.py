"""The manager's settings for people: config.toml as `setup` writes it, and docs/settings.md.

    python -m nodemgr.edge.setup.settings_reference > docs/settings.md

Knows: the table of settings (settings.py), TOML, Markdown. Must not know: what a setting does.
"""

from __future__ import annotations

import json
import textwrap

from client_plugin.units import format_duration, format_size
from nodemgr.edge.setup.settings import (
    ENV_PREFIX,
    OPTIONS,
    SYSTEM_CONFIG_FILE,
    SettingRow,
    Settings,
)
from nodemgr.paths import SYSTEM_RUN_DIR, SYSTEM_STATE_DIR

PLAIN = Settings(SYSTEM_RUN_DIR, SYSTEM_STATE_DIR)
"""The settings of a manager without file, variables and flags."""
WIDTH = 110
HEAD = (
    "The manager's settings, each at its default. After a change: systemctl restart nodemgr (no"
    " task is lost)."
)
PAGE = f"""# Settings of the manager

The node's own manager reads `{SYSTEM_CONFIG_FILE}`; `nodemgr serve --config FILE` reads another
file. A variable (`{ENV_PREFIX}BEAT_MS=500`) goes over the file, and a flag of `nodemgr serve` over
both. After a change: `systemctl restart nodemgr`; no task is lost. An environment's quota is no
setting: `nodemgr quota set --help`.

This page is made from the table in `nodemgr/edge/setup/settings.py`
(`python -m nodemgr.edge.setup.settings_reference`).

| setting | meaning | allowed | default |
|---|---|---|---|
"""


def config_file() -> str:
    """config.toml with every setting commented out.

    Each has its meaning, its allowed values and its default.
    """
    parts = [_comment(HEAD)]
    for option in OPTIONS:
        default = _default(option)
        value = (
            f"# {option.name}: not set"
            if default is None
            else f"# {option.name} = {_toml(default)}"
        )
        parts.append(
            f"{_comment(f'{option.meaning} Allowed: {option.kind.form}.')}\n"
            f"{value}{_readable(option.name, default)}"
        )
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """docs/settings.md."""
    return PAGE + "".join(f"| {' | '.join(_row(option))} |\n" for option in OPTIONS)


def _row(option: SettingRow) -> tuple[str, str, str, str]:
    default = _default(option)
    shown = "not set" if default is None else f"`{_toml(default)}`{_readable(option.name, default)}"
    return f"`{option.name}`", option.meaning, option.kind.form, shown.replace("  # ", ", ")


def _default(option: SettingRow) -> object:
    return getattr(PLAIN.core if option.core else PLAIN, option.name)


def _readable(name: str, value: object) -> str:
    """The value with its unit, shown beside the number."""
    if not isinstance(value, int) or value == 0:
        return ""
    if name.endswith("_bytes"):
        return f"  # {format_size(value)}"
    return f"  # {format_duration(value)}" if name.endswith("_ms") else ""


def _comment(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and all(isinstance(name, str) for name in value):
        return json.dumps(list(value))
    if isinstance(value, tuple):
        return "{ " + ", ".join(f"{name} = {rank}" for name, rank in value) + " }"
    return str(value) if isinstance(value, int | float) else json.dumps(str(value))


if __name__ == "__main__":
    print(page(), end="")
