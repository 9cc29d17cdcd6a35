"""Settings: flag over environment over file over default; what is wrong is said with its place."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from nodemgr.core.model.entities import Config
from nodemgr.edge.setup.settings import OPTIONS, SettingsError, load
from nodemgr.simulator import SimulatedGpu

GIB = 2**30


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    settings = load(environment={})
    assert (settings.core.beat_ms, settings.core.timeout_ms) == (1_000, 5_000)
    assert settings.simulate is None
    assert settings.run_dir.is_absolute()


def test_decisions_depend_on_settings_and_four_pauses(tmp_path: Path) -> None:
    pauses = {"requeue_pause_ms", "max_requeue_pause_ms", "offer_calm_ms", "enforce_grace_ms"}
    assert {field.name for field in fields(Config)} - pauses == {
        option.name for option in OPTIONS if option.core
    }
    core = load(
        {},
        write(
            tmp_path,
            "ageing_ms = 60000\nbackfill_depth = 1\nmax_jobs = 7\nmax_env_jobs = 3\nplacement ="
            ' "pack"\n',
        ),
        {},
    ).core
    assert (
        core.ageing_ms,
        core.backfill_depth,
        core.max_jobs,
        core.max_env_jobs,
        core.placement,
    ) == (60_000, 1, 7, 3, "pack")


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'beat_ms = 100\ntimeout_ms = 700\nsimulate = "2x8GiB"\n')
    environment = {"NODEMGR_BEAT_MS": "200", "NODEMGR_SIMULATE": "3x8GiB"}
    settings = load({"simulate": "4x8GiB", "udp": None}, file, environment)
    assert (settings.core.beat_ms, settings.core.timeout_ms, settings.simulate) == (
        200,
        700,
        (SimulatedGpu(8 * GIB),) * 4,
    )


def test_every_kind_of_setting_in_a_file(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'memory_overcommit = 1.5\nstalled = "kill"\nudp = "[::1]:7000"\nmax_tasks_per_gpu ='
        " 2\n[queues]\nnormal = 5\nurgent = 9\n",
    )
    settings = load({}, file, {})
    assert settings.core.memory_overcommit == 1.5
    assert settings.core.queues == (("urgent", 9), ("normal", 5))
    assert settings.udp == ("::1", 7000)


def test_queues_in_one_variable() -> None:
    assert load(environment={"NODEMGR_QUEUES": "normal=1,high=2"}).core.queues == (
        ("high", 2),
        ("normal", 1),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "beat_ms = 100\nhum = 5\n",
            r"config.toml, line 2: unknown setting 'hum'; docs/settings.md lists all$",
        ),
        (
            "\n\nbeat_mss = 5\n",
            r"config.toml, line 3: unknown setting 'beat_mss'; .* all; did you mean 'beat_ms'\?",
        ),
        ("\n\n[quota]\ngpus = 1\n", "config.toml, line 3: unknown setting 'quota'"),
        (
            "timeout_ms = 9000\nbeat_ms = -1\n",
            "config.toml, line 2: beat_ms: must be a whole number from 10 to 60000",
        ),
        ("beat_ms = true\n", "line 1: beat_ms: must be a whole number"),
        ("beat_ms = 1.5\n", "line 1: beat_ms: must be a whole number"),
        ("beat_ms = = 1\n", r"config.toml is no TOML .*line 1.*: mend that line"),
        ("ageing_ms = -1\n", "line 1: ageing_ms: must be a whole number from 0"),
        ('placement = "best"\n', "line 1: placement: must be one of auto, reliable, spread, pack"),
        ('stalled = "shoot"\n', "line 1: stalled: must be one of keep, kill"),
        ('memory_overcommit = "much"\n', "line 1: memory_overcommit: must be a number"),
        ('plain_tasks_share = "maybe"\n', "line 1: plain_tasks_share: must be true or false"),
        ("plain_tasks_share = 1\n", "line 1: plain_tasks_share: must be true or false"),
        ('simulate = "4x80"\n', "line 1: simulate: .*bare number"),
        ("simulate = 4\n", "line 1: simulate: must be a text"),
        ('udp = "7000"\n', "line 1: udp: .*HOST:PORT"),
        ('udp = "h:70000"\n', "line 1: udp: .*HOST:PORT"),
        ("queues = {}\n", "line 1: queues: must be a table"),
        ("[queues]\nhigh = 1\n", "line 1: queues: must hold the queue normal"),
        ('[queues]\nnormal = "x"\n', "line 1: queues: must be a whole number"),
        (
            '[queues]\n"Big Job" = 1\nnormal = 1\n',
            "line 1: queues: 'Big Job' is no name of a queue",
        ),
        ('run_dir = ""\n', "line 1: run_dir: must be a text"),
        ('udp = "0.0.0.0:7000"\n', "clients must know one: say client_address"),
        (
            "beat_ms = 1000\ntimeout_ms = 1500\n",
            r"timeout_ms \(1500\) must be at least twice beat_ms",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refusal:
        load({}, write(tmp_path, text), {})
    assert "\n" not in str(refusal.value)


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load({}, tmp_path / "none.toml", {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        load({}, tmp_path / "binary.toml", {})


def test_a_wrong_variable_or_flag_names_itself() -> None:
    with pytest.raises(SettingsError, match="NODEMGR_BEAT_MS: must be"):
        load(environment={"NODEMGR_BEAT_MS": "soon"})
    with pytest.raises(SettingsError, match=r"--simulate: .*write COUNTxSIZE"):
        load({"simulate": "many"}, environment={})


def test_users_are_not_shown_the_store(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run_dir and state_dir are both"):
        load({"run_dir": tmp_path, "state_dir": str(tmp_path)}, environment={})


def test_an_empty_variable_says_nothing() -> None:
    assert load(environment={"NODEMGR_BEAT_MS": ""}).core.beat_ms == 1_000


def test_every_option_lands_somewhere() -> None:
    settings = load(environment={})
    for option in OPTIONS:
        assert hasattr(settings.core if option.core else settings, option.name)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_setting_that_is_true_or_false(tmp_path: Path, text: str, value: bool) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"plain_tasks_share = {text}\n")
    assert load({}, file, {}).core.plain_tasks_share is value
    assert load({}, None, {"NODEMGR_PLAIN_TASKS_SHARE": text}).core.plain_tasks_share is value
