"""The steps and the undoing of a setup, in a directory that stands for a machine.

The record of each step's maker is never mixed up.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from client_plugin.messages.form import relayed
from nodemgr.edge.host import privileges
from nodemgr.edge.host.rundir import PAGE_GROUP, VIEWS_SOCKET
from nodemgr.edge.setup import installation, settings_reference
from nodemgr.edge.setup.installation import IDLE, STEPS, Machine, StepFailed
from nodemgr.edge.setup.settings import OPTIONS, load
from tests.session import TMP

PROGRAM = ("/opt/nodemgr/bin/nodemgr",)
CONFIG, UNIT_FILE, RECORD = (
    "etc/nodemgr/config.toml",
    "etc/systemd/system/nodemgr.service",
    "etc/nodemgr/setup.json",
)
JOBS_UNIT_FILE = "etc/systemd/system/nodemgr-jobs.service"
WEB_UNIT_FILE = "etc/systemd/system/nodemgr-web.service"
WANTED = "etc/systemd/system/multi-user.target.wants/nodemgr.service"


class Commands:
    """Does what groupadd and systemctl would do below the root, until it is told to fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.failing = ""

    def __call__(self, command: Sequence[str]) -> None:
        name, what = command[0], " ".join(command)
        self.said.append(what)
        if self.failing and self.failing in what:
            raise StepFailed(relayed(f"{what}: Operation not permitted"))
        group = self.root / "etc/group"
        line = f"{command[-1]}:x:990:\n"
        if name == "groupadd":
            group.write_text((group.read_text() if group.exists() else "") + line)
        elif name == "groupdel":
            group.write_text(group.read_text().replace(line, ""))
        elif "enable" in command and not (self.root / WANTED).is_symlink():
            (self.root / WANTED).parent.mkdir(parents=True)
            (self.root / WANTED).symlink_to("/" + UNIT_FILE)
        elif "disable" in command:
            (self.root / WANTED).unlink()
            (self.root / WANTED).parent.rmdir()


class Running(Machine):
    """One on which systemd runs."""

    @property
    def is_running(self) -> bool:
        return True


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.kind = Machine
        self.commands = Commands(root)
        self.program = PROGRAM
        self.has_systemd = True

    def machine(self) -> Machine:
        return self.kind(self.root, self.program, self.commands, has_systemd=self.has_systemd)

    def plan(self) -> dict[str, str]:
        """The verbs, by the last part of what they concern."""
        machine = self.machine()
        return {
            type(step).__name__ + str(getattr(step, "path", getattr(step, "name", ""))): (
                step.plan(machine)[0]
            )
            for step in STEPS
        }

    def set_up(self) -> None:
        machine = self.machine()
        for step in [step for step in STEPS if step.plan(machine)[0] not in IDLE]:
            step.do(machine)

    def take_back(self) -> None:
        machine = self.machine()
        for step in [step for step in STEPS[::-1] if step.unplan(machine)[0] not in IDLE]:
            step.undo(machine)

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()
        }


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_new_machine_is_made_a_node_once(world: World) -> None:
    assert set(world.plan().values()) == {"make", "write", "enable", "skip"}
    before = os.umask(0o077)
    world.set_up()
    os.umask(before)
    assert world.files() == {
        "etc/group",
        CONFIG,
        RECORD,
        JOBS_UNIT_FILE,
        WEB_UNIT_FILE,
        UNIT_FILE,
        WANTED,
    }
    modes = {
        name: stat.S_IMODE((world.root / name).stat().st_mode)
        for name in ("etc/nodemgr", CONFIG, "etc/cdi", "var/lib/nodemgr")
    }
    assert modes == {
        "etc/nodemgr": 0o755,
        CONFIG: 0o644,
        "etc/cdi": 0o755,
        "var/lib/nodemgr": 0o700,
    }
    said = list(world.commands.said)
    assert set(world.plan().values()) == {"ok", "skip"}
    world.set_up()
    assert world.commands.said == said, "a second setup does nothing"


def test_taking_back_leaves_the_store_alone_and_nothing_else(world: World) -> None:
    world.set_up()
    (world.root / "var/lib/nodemgr/state.db").write_text("quotas")
    for left in ("run/nodemgr/envs/alice/client.conf", "etc/cdi/nodemgr.json"):
        (world.root / left).parent.mkdir(parents=True, exist_ok=True)
        (world.root / left).write_text("the manager's")
    world.take_back()
    assert world.files() == {"etc/group", "var/lib/nodemgr/state.db"}
    assert (world.root / "etc/group").read_text() == ""
    assert not (world.root / "etc/nodemgr").exists()
    assert not (world.root / "etc/cdi").exists()
    assert not (world.root / "run/nodemgr").exists()


def test_what_was_there_before_stays(world: World) -> None:
    for directory in ("etc/cdi", "etc/nodemgr"):
        (world.root / directory).mkdir(parents=True)
    (world.root / "etc/cdi/nvidia.json").write_text("{}")
    (world.root / "etc/group").write_text("root:x:0:\nnodemgr:x:990:\nnodemgr-page:x:991:\n")
    (world.root / CONFIG).write_text('udp = "10.0.0.1:7000"\n')
    world.set_up()
    assert "groupadd" not in " ".join(world.commands.said)
    assert (world.root / CONFIG).read_text() == 'udp = "10.0.0.1:7000"\n'
    world.take_back()
    assert {"etc/cdi/nvidia.json", "etc/group", CONFIG} == world.files()
    assert "nodemgr:x:990:\nnodemgr-page:x:991:\n" in (world.root / "etc/group").read_text()


def test_what_was_edited_is_kept(world: World) -> None:
    world.set_up()
    (world.root / CONFIG).write_text("beat_ms = 500\n")
    with (world.root / UNIT_FILE).open("a") as file:
        file.write("Nice=5\n")
    plan = world.plan()
    assert (plan[f"InstalledFile/{CONFIG}"], plan[f"InstalledFile/{UNIT_FILE}"]) == ("keep", "keep")
    world.take_back()
    assert world.files() == {"etc/group", CONFIG, UNIT_FILE}


def test_a_later_version_replaces_what_is_still_ours(world: World) -> None:
    world.set_up()
    world.program = ("/opt/newer/bin/nodemgr",)
    assert world.plan()[f"InstalledFile/{UNIT_FILE}"] == "replace"
    (world.root / WANTED).unlink()
    (world.root / WANTED).parent.rmdir()
    world.set_up()
    assert "ExecStart=/opt/newer/bin/nodemgr serve\n" in (world.root / UNIT_FILE).read_text()


@pytest.mark.parametrize("failing", ["groupadd", "systemctl"])
def test_what_failed_halfway_is_continued_or_undone(world: World, failing: str) -> None:
    world.commands.failing = failing
    with pytest.raises(StepFailed, match="Operation not permitted"):
        world.set_up()
    world.commands.failing = ""
    world.set_up()
    assert world.files() == {
        "etc/group",
        CONFIG,
        RECORD,
        JOBS_UNIT_FILE,
        WEB_UNIT_FILE,
        UNIT_FILE,
        WANTED,
    }
    world.commands.failing = failing.replace("groupadd", "groupdel")
    with pytest.raises(StepFailed):
        world.take_back()
    world.commands.failing = ""
    world.take_back()
    assert world.files() == {"etc/group"}


def test_where_systemd_runs_the_service_is_started_and_stopped(world: World) -> None:
    world.kind = Running
    world.set_up()
    assert world.commands.said[-4:] == [
        "systemctl daemon-reload", "systemctl enable nodemgr.service",
        "systemctl restart nodemgr-jobs.service",
        "systemctl start nodemgr.service",
    ]  # fmt: skip
    assert set(world.plan().values()) == {"ok", "skip"}
    world.take_back()
    stopped = world.commands.said.index("systemctl disable --now nodemgr.service")
    assert world.commands.said[stopped + 1] == "systemctl stop nodemgr-jobs.service"


def test_a_service_that_does_not_start_is_taken_back_like_any_other(world: World) -> None:
    world.kind = Running
    world.commands.failing = "systemctl start"
    with pytest.raises(StepFailed):
        world.set_up()
    world.take_back()
    assert world.files() == {"etc/group"}


def test_without_systemd_the_rest_is_done(world: World) -> None:
    world.has_systemd = False
    assert "serve` at boot" in STEPS[-1].plan(world.machine())[1]
    world.set_up()
    assert world.files() == {"etc/group", CONFIG, RECORD, JOBS_UNIT_FILE, WEB_UNIT_FILE, UNIT_FILE}
    assert "systemctl" not in " ".join(world.commands.said)
    world.take_back()
    assert world.files() == {"etc/group"}


@pytest.mark.parametrize("text", ["", "[]", '{"made": 7}', "\xff", '{"made": {"etc": {}}}'])
def test_a_damaged_record_makes_nothing_ours(world: World, text: str) -> None:
    world.set_up()
    (world.root / RECORD).write_text(text)
    (world.root / CONFIG).write_text("beat_ms = 500\n")
    world.take_back()
    assert {CONFIG, UNIT_FILE} <= world.files()


def test_an_open_state_directory_is_closed(world: World) -> None:
    (world.root / "var/lib/nodemgr").mkdir(parents=True, mode=0o755)
    assert world.plan()["Directory/var/lib/nodemgr"] == "close"
    world.set_up()
    assert stat.S_IMODE((world.root / "var/lib/nodemgr").stat().st_mode) == 0o700


def test_a_command_that_cannot_run_is_one_line() -> None:
    with pytest.raises(StepFailed, match=r"no-such-command: .*No such file"):
        installation.run_command(["no-such-command"])
    with pytest.raises(
        StepFailed, match=r"^sh -c echo one; echo two >&2; exit 3: two; run that command by hand"
    ):
        installation.run_command(["sh", "-c", "echo one; echo two >&2; exit 3"])
    with pytest.raises(StepFailed, match="false: exit 1"):
        installation.run_command(["false"])


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("groupadd"), reason="needs root and groupadd"
)
@pytest.mark.skipif(not shutil.which("systemctl"), reason="needs systemctl")
def test_with_the_real_commands(world: World) -> None:
    (world.root / "etc").mkdir()
    world.commands = installation.run_command  # type: ignore[assignment]
    world.set_up()
    assert re.search(r"^nodemgr:", (world.root / "etc/group").read_text(), re.MULTILINE)
    assert (world.root / WANTED).is_symlink()
    assert set(world.plan().values()) == {"ok", "skip"}
    world.take_back()
    assert not (world.root / WANTED).is_symlink()
    assert "nodemgr" not in (world.root / "etc/group").read_text()


# -- what is written --


def test_the_settings_are_all_there_and_right_when_uncommented(tmp_path: Path) -> None:
    text = installation.config_template(Machine(tmp_path, PROGRAM))
    assert tomllib.loads(text) == {}
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    assert load({}, path, {}) == installation.PLAIN
    for option in OPTIONS:
        before, _ = re.split(rf"\n# {option.name}(?:: not set| = )", text)
        comment = before.rpartition("\n\n")[2].splitlines()
        told = " ".join(line.removeprefix("# ") for line in comment)
        assert told == f"{option.meaning} Allowed: {option.kind.form}.", "above its line"


def test_the_page_of_the_settings_is_made_from_their_table() -> None:
    """python -m nodemgr.edge.setup.settings_reference > docs/settings.md"""
    page = (Path(__file__).resolve().parents[3] / "docs" / "settings.md").read_text()
    assert page == settings_reference.page()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.count(" | ") for row in rows] == [3] * len(OPTIONS)
    assert "| `beat_ms` | How often a client gives a sign of life" in page
    assert "| a whole number from 10 to 60000 | `1000`, 1 s |" in page


def test_the_unit_gives_what_the_manager_keeps_and_the_right_to_give_up_the_rest(
    tmp_path: Path,
) -> None:
    text = installation.unit(Machine(tmp_path, PROGRAM))
    bounding = " ".join(re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE))
    assert set(bounding.split()) == {row.name for row in privileges.RETAINED} | {"CAP_SETPCAP"}
    assert f"ExecStart={PROGRAM[0]} serve\n" in text
    (after,) = re.findall("^After=(.*)$", text, re.MULTILINE)
    assert "time-sync.target" in after.split(), "wall times of before would be of 1970"
    assert "@PROGRAM@" not in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    path = tmp_path / "nodemgr.service"
    path.write_text(installation.unit(Machine(tmp_path, ("/bin/true",))))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    complaints = [
        line
        for line in verified.stderr.splitlines()
        if path.name in line and "nvidia-smi" not in line
    ]
    assert complaints == []
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(path)]
    rated = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    level = re.search(r"Overall exposure level for nodemgr.service: ([0-9.]+)", rated)
    assert level is not None
    assert float(level[1]) < 4.5


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_unit_of_jobs_too(tmp_path: Path) -> None:
    path = tmp_path / "nodemgr-jobs.service"
    path.write_text(installation.unit(Machine(tmp_path, PROGRAM), installation.JOBS_UNIT))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert [line for line in verified.stderr.splitlines() if path.name in line] == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_unit_of_the_web_page_and_finds_it_confined(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nodemgr-web.service"
    path.write_text(installation.unit(Machine(tmp_path, ("/bin/true",)), installation.WEB_UNIT))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert [line for line in verified.stderr.splitlines() if path.name in line] == []
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(path)]
    rated = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    level = re.search(r"Overall exposure level for nodemgr-web.service: ([0-9.]+)", rated)
    assert level is not None, rated
    assert float(level[1]) < 2.5


def test_the_web_page_has_no_right(tmp_path: Path) -> None:
    text = installation.unit(Machine(tmp_path, PROGRAM), installation.WEB_UNIT)
    said = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert said["ExecStart"].endswith(" web page --run-dir /run/nodemgr")
    assert said["DynamicUser"] == "yes"
    assert said["SupplementaryGroups"] == PAGE_GROUP
    assert (said["CapabilityBoundingSet"], said["NoNewPrivileges"]) == ("", "yes")
    assert said["ConditionPathExists"] == f"/run/nodemgr/{VIEWS_SOCKET}"
    assert "User" not in said, "systemd refuses a user of which only the group is there"


def test_nothing_is_taken_from_jobs(tmp_path: Path) -> None:
    """A confinement of a service confines the processes that it starts, for good."""
    text = installation.unit(Machine(tmp_path, PROGRAM), installation.JOBS_UNIT)
    said = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert os.access(said["ExecStart"].split()[0], os.X_OK)
    assert (said["KillMode"], said["OOMPolicy"], said["TasksMax"]) == (
        "process",
        "continue",
        "infinity",
    )
    confining = (
        r"Protect|Private|Restrict|NoNew|Capab|SystemCall|Device|ReadOnly|Inaccessible|Memory"
        r"|CPU|UMask|User|Lock"
    )
    assert [name for name in said if re.match(confining, name)] == []


# -- doubts --


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that others reach; pytest's is closed again whenever another run of it starts."""
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_directory_that_hides_the_installation_is_named(open_to_all: Path) -> None:
    home = open_to_all / "home"
    package = home / "site-packages" / "nodemgr"
    package.mkdir(parents=True)
    assert installation.hidden_from_others((package,)) is None
    home.chmod(0o700)
    line = installation.hidden_from_others((Path("/bin/sh"), package))
    assert line is not None
    assert line.startswith(f"no other user can read {package}, and so run nodemgr: {home} is drwx")
    assert line in installation.doubts(["/bin/sh"], Path("/bin/sh"), package)
    home.chmod(0o755)
    file = package / "module.py"
    file.touch(0o640)
    file.chmod(0o640)
    assert str(file) in (installation.hidden_from_others((file,)) or "")
    assert installation.hidden_from_others((open_to_all / "none",)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root owns what root trusts")
def test_a_program_that_others_can_change_is_doubted(tmp_path: Path) -> None:
    trusted = (Path("/bin/sh"), Path("/usr/lib"))
    assert installation.doubts(["/bin/sh"], *trusted) == []
    program = tmp_path / "bin" / "nodemgr"
    program.parent.mkdir()
    program.touch(0o755)
    assert "PrivateTmp= sees nothing" in installation.doubts([str(program)], *trusted)[0]
    os.chown(program.parent, 1_000, 1_000)
    assert (
        f"{program.parent} can be changed by others than root (uid 1000"
        in installation.doubts([str(program)], *trusted)[-1]
    )
    assert (
        f"{program.parent} can be changed"
        in installation.doubts(["/bin/sh"], program, Path("/usr/lib"))[-1]
    ), "the interpreter"
    assert (
        f"{program.parent} can be changed"
        in installation.doubts(["/bin/sh"], Path("/bin/sh"), program.parent)[-1]
    ), "the package"
    os.chown(program.parent, 0, 0)
    program.parent.chmod(0o777)
    assert (
        "becomes root by this service"
        in installation.doubts([str(program), "-m", "nodemgr"], *trusted)[-1]
    )
    assert installation.doubts(["/no/such/program"], *trusted) == [
        "/no/such/program cannot be read (No such file or directory): mend that, then run it again"
    ]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (("/usr/bin/python3", "-m", "nodemgr"), "ExecStart=/usr/bin/python3 -m nodemgr serve"),
        (("/opt/my gpus/100%/nodemgr",), 'ExecStart="/opt/my gpus/100%%/nodemgr" serve'),
        (('/opt/"$x\\y',), 'ExecStart="/opt/\\"$$x\\\\y" serve'),
    ],
)
def test_a_path_is_written_as_systemd_reads_it(
    tmp_path: Path, program: tuple[str, ...], line: str
) -> None:
    assert line in installation.unit(Machine(tmp_path, program)).splitlines()
