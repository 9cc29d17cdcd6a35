"""The manager's settings: one table of options.

They are read from flags, environment variables and config.toml, in that order.

Knows: each option's name, type, limits and default. Must not know: the effect of an option.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_plugin import fields
from client_plugin.messages.form import SpokenError, relayed
from client_plugin.units import UnitError
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.model.entities import Config
from nodemgr.core.placement.orders import ORDERS
from nodemgr.core.views import cdi
from nodemgr.edge.store.history_rows import Bounds
from nodemgr.messages import settings as messages
from nodemgr.paths import SYSTEM_RUN_DIR, default_run_dir, default_state_dir

if TYPE_CHECKING:
    from nodemgr.simulator import SimulatedGpu

ENV_PREFIX = "NODEMGR_"
ANYWHERE = ("0.0.0.0", "::")
SYSTEM_CONFIG_FILE = Path("/etc/nodemgr/config.toml")

OF_CORE = frozenset(row.name for row in dataclasses.fields(Config))
DEVICE_GATE = ("auto", "on", "off")
JOB_LOG_SINKS = ("file", "journald")


class SettingsError(SpokenError, ValueError):
    """One line: the setting, its place, and the right form."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of `nodemgr serve`."""

    run_dir: Path
    state_dir: Path
    core: Config = field(default_factory=Config)
    simulate: tuple[SimulatedGpu, ...] | None = None
    """The GPUs of a simulated node; None: the real one."""
    udp: tuple[str, int] | None = None
    """Host and port to listen on; port 0 takes a free one."""
    group: str = "nodemgr"
    """Its members may use the control socket, beside root and the manager's own user."""
    max_connections_per_env: int = 1_100
    """A little above the processes that a ledger holds, so that waiters and questions find room."""
    cdi_dir: Path = Path("/etc/cdi")
    """Where this manager writes its CDI file; RUN/cdi unless root runs the node's own manager."""
    cdi_kind: str = "nodemgr.local/env"
    """The kind of its devices, which also names the file: podman run --device KIND=ENV."""
    device_gate: str = "auto"
    """One of DEVICE_GATE.

    auto: the gate is used on a real node if the host can. on: without it the manager does not
    start.
    """
    gate_node: bool = False
    """Whether logins and jobs of the node open the GPUs of their own tasks alone."""
    job_log_sink: str = "file"
    """One of JOB_LOG_SINKS: the place of the end of each job's output beside the history.

    journald: the system's journal gets it, too.
    """
    job_log_bytes: int = 2**28
    """The most output of one attempt that is kept while it runs; 0: no limit.

    Of a longer output the middle is dropped.
    """
    job_logs_days: int = 30
    job_logs_bytes: int = 2**30
    """How long, and how much, of the output of jobs that have ended is kept in files."""
    disk_reserve_bytes: int = 2**26
    """Room on the store's disk for grants and releases alone; at most 1/20 of the file system."""
    max_history_bytes: int = Bounds().all_bytes
    """The most bytes of ended jobs in the store."""
    max_env_history_bytes: int = Bounds().env_bytes
    """The same of one environment's."""
    web: tuple[str, int] | None = None
    """Host and port of the web page; None: there is none."""
    web_hosts: tuple[str, ...] = ()
    """Names that the web page answers to, beside localhost and its own address."""
    web_base: str = "/"
    """The path of the web page on its site; it begins and ends with a slash."""
    cluster_users: tuple[str, ...] = ()
    """Users below uid 1000 whose jobs a cluster's head may start here."""
    slurm_pool: bool = False
    """Whether Slurm lends this node: without a pilot its GPUs are closed."""
    client_address: str | None = None
    """HOST:PORT of this manager for UDP clients, if it differs from `udp` (NAT, 0.0.0.0)."""


@dataclass(frozen=True, slots=True)
class SettingKind:
    """The values of a setting: `form` for people, `parse` raises SettingsError."""

    form: str
    parse: Callable[[object], object]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One row of the table."""

    name: str
    kind: SettingKind
    meaning: str
    """One or two sentences for an admin; settings_reference.py writes them into the files."""

    @property
    def core(self) -> bool:
        """True: a field of core.Config, else of Settings."""
        return self.name in OF_CORE


def _integer(low: int, high: int) -> SettingKind:
    form = f"a whole number from {low} to {high}"

    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingsError(messages.MUST_BE(form=form))
        return value

    return SettingKind(form, parse)


def _ratio(low: float, high: float) -> SettingKind:
    form = f"a number from {low} to {high}"

    def parse(value: object) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise SettingsError(messages.MUST_BE(form=form)) from None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise SettingsError(messages.MUST_BE(form=form))
        return float(value)

    return SettingKind(form, parse)


def _boolean(value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value)
    if not isinstance(value, bool):
        raise SettingsError(messages.MUST_BE(form=_BOOLEAN.form))
    return value


_BOOLEAN = SettingKind("true or false", _boolean)


def _choice(*names: str) -> SettingKind:
    form = f"one of {', '.join(names)}"

    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise SettingsError(messages.MUST_BE(form=form))
        return value

    return SettingKind(form, parse)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise SettingsError("must be a text that is not empty")
    return value


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value.absolute()
    return Path(_text(value)).absolute()


def parse_simulated(value: object) -> tuple[SimulatedGpu, ...]:
    from nodemgr.simulator import parse_gpus

    try:
        return parse_gpus(_text(value))
    except UnitError as error:
        raise SettingsError(relayed(str(error))) from None


def parse_address(value: object) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`, IPv6 hosts in brackets. Raises SettingsError."""
    match = re.fullmatch(
        r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", _text(value), re.ASCII
    )
    if match is None or int(match[2]) > 65_535:
        raise SettingsError(f"{value!r} must be HOST:PORT, e.g. 127.0.0.1:7000")
    return match[1].strip("[]"), int(match[2])


def _cdi_kind(value: object) -> str:
    if not cdi.is_kind(text := _text(value)):
        raise SettingsError(f"{value!r} is no kind of CDI device: {cdi.KIND_FORM}")
    return text


LOG_SIZE = _integer(2**20, 2**50)


def _log_bytes(value: object) -> object:
    """None, or enough that a beginning and an end are left of it."""
    return value if value in (0, "0") else LOG_SIZE.parse(value)


def _client_address(value: object) -> str:
    parse_address(value)
    return str(value)


def _web_hosts(value: object) -> tuple[str, ...]:
    """`["gpus.example.org"]`, or as text `a.example.org,b.example.org`."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        raise SettingsError("must be a list of host names")
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", name, re.ASCII):
            raise SettingsError(f"{name!r} is no host name: leave out scheme, port and path")
    return tuple(value)


def _users(value: object) -> tuple[str, ...]:
    """`["service"]`, or as text `service,root`."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise SettingsError(messages.MUST_BE(form="a list of user names"))
    return tuple(filter(None, value))


def _web_base(value: object) -> str:
    base = _text(value)
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]{1,64}){0,8}/?", base, re.ASCII):
        raise SettingsError(messages.NOT_SITE_PATH(value=value))
    if any(set(part) <= {"."} for part in base.strip("/").split("/") if part):
        raise SettingsError(messages.NOT_SITE_PATH(value=value))
    return base.rstrip("/") + "/"


def _queues(value: object) -> tuple[tuple[str, int], ...]:
    """`{high = 300, normal = 200}`, or as text `high=300,normal=200`; a higher rank goes first."""
    if isinstance(value, str):
        value = dict(part.partition("=")[::2] for part in value.split(","))
    if not isinstance(value, Mapping) or not value:
        raise SettingsError("must be a table of queue names and ranks, e.g. high=300, normal=200")
    queues = []
    rank = _integer(0, 1_000_000).parse
    for name, number in value.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,31}", str(name), re.ASCII):
            raise SettingsError(f"{name!r} is no name of a queue: 1 to 32 of a-z 0-9 . _ -")
        queues.append((str(name), int(str(rank(number)))))
    if "normal" not in dict(queues):
        raise SettingsError("must hold the queue normal, which quotas name by default")
    return tuple(sorted(queues, key=lambda queue: -queue[1]))


PATH = SettingKind("a path", _path)
TEXT = SettingKind("a text that is not empty", _text)
ADDRESS = SettingKind("HOST:PORT; an IPv6 host in brackets", parse_address)

OPTIONS = (
    SettingRow("run_dir", PATH, "The directory of the sockets, and of the clients' files."),
    SettingRow(
        "state_dir",
        PATH,
        ("The directory of the store, and of all else that survives a restart; closed to users."),
    ),
    SettingRow(
        "simulate",
        SettingKind("GPUs, e.g. 4x80GiB or 2xA100-80GiB,2xT4-16GiB", parse_simulated),
        "A node without hardware: its GPUs are simulated.",
    ),
    SettingRow(
        "udp",
        ADDRESS,
        "Listen there for clients on other machines, each with its environment's key. Port 0 "
        "takes a free one.",
    ),
    SettingRow(
        "client_address",
        SettingKind(ADDRESS.form, _client_address),
        "The address at which clients reach `udp`, where it differs: behind NAT, or with 0.0.0.0.",
    ),
    SettingRow(
        "web",
        ADDRESS,
        "Serve the web page there: docs/admins/reference.md. It needs the extra `faces`.",
    ),
    SettingRow(
        "web_hosts",
        SettingKind("a list of host names", _web_hosts),
        "Names under which browsers reach the web page, beside localhost and its own address.",
    ),
    SettingRow(
        "web_base",
        SettingKind("a path, e.g. /gpus", _web_base),
        "The path of the web page on its site, behind a proxy that passes it on.",
    ),
    SettingRow(
        "cluster_users",
        SettingKind("a list of user names", _users),
        "Users with a uid below 1000 whose jobs the head of a cluster may start on this node.",
    ),
    SettingRow(
        "slurm_pool",
        _BOOLEAN,
        "Slurm lends this node to a cluster: without a living pilot of the head no GPU is given.",
    ),
    SettingRow(
        "cdi_dir",
        PATH,
        "The directory of the CDI file, which container engines read. Another manager's: RUN/cdi.",
    ),
    SettingRow(
        "cdi_kind",
        SettingKind(cdi.KIND_FORM, _cdi_kind),
        "The kind of the CDI devices: podman run --device KIND=ENV.",
    ),
    SettingRow(
        "group", TEXT, "The group whose members are admins, beside root and the manager's own user."
    ),
    SettingRow(
        "device_gate",
        _choice(*DEVICE_GATE),
        "The device gate of containers. auto: where root, the kernel and cgroup v2 allow, "
        "on a real node; on: else the manager does not "
        "start; off: containers can open every GPU that they were given.",
    ),
    SettingRow(
        "gate_node",
        _BOOLEAN,
        "Whether a process outside of containers opens a GPU only while a task in its cgroup has a "
        "lease on it: logins (user.slice) and jobs, root exempt. Services are not closed. Where "
        "the node cannot do it, the manager does not start.",
    ),
    SettingRow(
        "job_log_sink",
        _choice(*JOB_LOG_SINKS),
        ("Where the end of a job's output goes beside the history. journald: the journal, too."),
    ),
    SettingRow(
        "job_log_bytes",
        SettingKind(f"0, or {LOG_SIZE.form}", _log_bytes),
        "The output of one start of a job that is kept while it runs; the middle of a "
        "longer one is dropped. 0: without limit.",
    ),
    SettingRow(
        "job_logs_days",
        _integer(0, 36_500),
        "How many days the output of jobs that have ended is kept in files.",
    ),
    SettingRow(
        "job_logs_bytes",
        _integer(0, 2**50),
        "How much output of jobs that have ended is kept in files; the oldest goes first.",
    ),
    SettingRow(
        "disk_reserve_bytes",
        _integer(0, 2**40),
        "Bytes of the store's disk that are kept free for grants and releases "
        "alone; at most a twentieth of the file system.",
    ),
    SettingRow(
        "max_history_bytes",
        _integer(2**20, 2**50),
        "The most that the store keeps of jobs that have ended; the oldest goes first.",
    ),
    SettingRow(
        "max_env_history_bytes", _integer(2**20, 2**50), "The same for the jobs of one environment."
    ),
    SettingRow(
        "max_connections_per_env",
        _integer(1, 100_000),
        "The most connections to one environment's socket.",
    ),
    SettingRow(
        "beat_ms",
        _integer(10, 60_000),
        "How often a client gives a sign of life, and the driver's figures are read.",
    ),
    SettingRow(
        "timeout_ms",
        _integer(50, 3_600_000),
        "After this silence a task is reclaimed if its processes are gone, and stalled "
        "if they live. At least twice beat_ms.",
    ),
    SettingRow(
        "max_tasks_per_gpu",
        _integer(1, 1_024),
        "A GPU with this many tasks is given to no other environment.",
    ),
    SettingRow(
        "plain_tasks_share",
        _BOOLEAN,
        "Whether tasks without a share of compute may run beside tasks with one on a GPU. If"
        " not, such a task counts as 100 % of its GPU beside those.",
    ),
    SettingRow(
        "memory_overcommit",
        _ratio(0.1, 16.0),
        "The grants on a GPU may add up to its memory times this.",
    ),
    SettingRow(
        "stalled",
        _choice("keep", "kill"),
        "The action on a task that is silent and alive. keep: its memory "
        "stays its own; kill: it is ended after stalled_grace_ms.",
    ),
    SettingRow(
        "stalled_grace_ms",
        _integer(0, 86_400_000),
        "How long a stalled task has to go on before it is killed.",
    ),
    SettingRow(
        "placement",
        _choice(*fields.PLACEMENTS),
        "The order in which fresh GPUs are given. "
        + "".join(f"{name}: {order.meaning}; " for name, order in ORDERS.items())
        + "reliable: long and wide jobs on the GPUs that fail least; auto: reliable once "
        "failures are recorded, else spread; learned: by trained weights (nodemgr placement).",
    ),
    SettingRow(
        "drain_failures",
        _integer(0, 1_000),
        "A GPU that fails so often within an hour gets no new task, unless it is the last "
        "one; 0: never.",
    ),
    SettingRow(
        "queues",
        SettingKind(
            "a table of names and ranks, with the queue normal, e.g. { high = 300, normal = 200 }",
            _queues,
        ),
        "The queues that the manager starts with; a higher rank goes first. `nodemgr "
        "queue create` makes more.",
    ),
    SettingRow(
        "ageing_ms",
        _integer(0, 86_400_000),
        "A waiting request gains one point of rank in this time. 0: strictly by rank.",
    ),
    SettingRow(
        "preempt_exempt_ms",
        _integer(0, 86_400_000),
        "How long a best-effort task keeps its GPUs after it started or came back: until then "
        "it is neither suspended nor ended for a latency-sensitive request. 0: it may go at "
        "any moment.",
    ),
    SettingRow(
        "recall_ms",
        _integer(0, 86_400_000),
        "How long an elastic task has to leave a recalled GPU before its processes there "
        "are ended.",
    ),
    SettingRow(
        "backfill_depth",
        _integer(1, 10_000),
        "How many waiting requests are planned for behind one that cannot start.",
    ),
    SettingRow(
        "max_jobs", _integer(1, 10_000_000), "The most jobs of the node that have not ended."
    ),
    SettingRow(
        "max_env_jobs",
        _integer(1, 10_000_000),
        "The most jobs of one environment that have not ended.",
    ),
    SettingRow(
        "max_env_job_bytes",
        _integer(2**20, 2**50),
        "The most that the store holds of one environment's jobs that have not ended.",
    ),
    SettingRow(
        "max_cpu_jobs",
        _integer(1, 100_000),
        "The most jobs without a GPU that run at once on the node.",
    ),
    SettingRow(
        "max_env_cpu_jobs",
        _integer(1, 100_000),
        "The most jobs of one environment without a GPU that run at once.",
    ),
    SettingRow(
        "cpus_per_gpu",
        _integer(0, 65_536),
        "The processors of a job that names none (--cpus), for each of its GPUs; 0: no limit.",
    ),
    SettingRow(
        "host_memory_per_gpu_bytes",
        _integer(0, 2**48),
        "The host memory of a job that names none (--host-memory), for each of its GPUs; 0: no "
        "limit.",
    ),
    SettingRow(
        "node_cpus",
        _integer(0, 65_536),
        "The processors that all jobs may reserve together; 0: all that the node has.",
    ),
    SettingRow(
        "node_memory_bytes",
        _integer(0, 2**48),
        "The host memory that all jobs may reserve together; 0: all that the node has.",
    ),
    SettingRow(
        "enforce",
        _choice(*fields.ENFORCE),
        "The action against a process that bypasses its quota, if the quota "
        "names none: see docs/memory.md.",
    ),
    SettingRow(
        "audit_tolerance_bytes",
        _integer(0, 2**48),
        "The most that the driver may show of an environment's processes on a GPU beyond its "
        "grant before a report: modules, local memory.",
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}


def _parse(option: SettingRow, value: object, where: str) -> object:
    try:
        return option.kind.parse(value)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}", code="usage") from None


def _line_of(text: str, key: str) -> int:
    """The first line that begins with this key, bare, quoted or as a table.

    tomllib reports no lines.
    """
    pattern = re.compile(
        rf"""^\s*(?:\[\s*)?["']?{re.escape(key)}["']?\s*(?:=|\]|\.)""", re.MULTILINE
    )
    match = pattern.search(text)
    return text.count("\n", 0, match.end()) + 1 if match else 1


def _from_file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        table: dict[str, Any] = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path} cannot be read ({error})",
            "mend its rights, or name another file with --config",
            "usage",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"{path} is no TOML ({error})", "mend that line of the file", "usage"
        ) from None
    said = {}
    for key, value in table.items():
        where = f"{path}, line {_line_of(text, key)}"
        if key not in BY_NAME:
            raise SettingsError(
                f"{where}: unknown setting {key!r}",
                f"docs/settings.md lists all{did_you_mean(key, BY_NAME)}",
                "usage",
            )
        said[key] = _parse(BY_NAME[key], value, f"{where}: {key}")
    return said


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    return {
        option.name: _parse(option, environment[variable], variable)
        for option in OPTIONS
        if environment.get(variable := ENV_PREFIX + option.name.upper())
    }


def load(
    flags: Mapping[str, object] | None = None,
    config_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags (None: not given), over environment, over file, over defaults.

    Raises SettingsError.

    Without `config_file`, /etc/nodemgr/config.toml is read where root runs the node's manager and
    it exists.
    """
    if (
        config_file is None
        and os.geteuid() == 0
        and default_run_dir() == SYSTEM_RUN_DIR
        and SYSTEM_CONFIG_FILE.exists()
    ):
        config_file = SYSTEM_CONFIG_FILE
    said: dict[str, object] = {}
    if config_file is not None:
        said |= _from_file(config_file)
    said |= _from_environment(os.environ if environment is None else environment)
    for name, value in (flags or {}).items():
        if value is not None:
            said[name] = _parse(BY_NAME[name], value, "--" + name.replace("_", "-"))
    core = {name: value for name, value in said.items() if BY_NAME[name].core}
    rest = {name: value for name, value in said.items() if not BY_NAME[name].core}
    rest.setdefault("run_dir", default_run_dir().absolute())
    rest.setdefault("state_dir", default_state_dir().absolute())
    if os.geteuid() != 0 or rest["run_dir"] != SYSTEM_RUN_DIR:
        rest.setdefault("cdi_dir", Path(str(rest["run_dir"])) / "cdi")
    settings = Settings(core=Config(**core), **rest)  # type: ignore[arg-type]
    if settings.run_dir == settings.state_dir:
        raise SettingsError(
            f"run_dir and state_dir are both {settings.run_dir}, and only the first is shown to "
            "users",
            "name two directories",
            "usage",
        )
    if settings.core.timeout_ms < 2 * settings.core.beat_ms:
        raise SettingsError(
            f"timeout_ms ({settings.core.timeout_ms}) must be at least twice beat_ms "
            f"({settings.core.beat_ms}), else one late beat ends a task",
            code="usage",
        )
    if settings.udp is not None and settings.udp[0] in ANYWHERE and settings.client_address is None:
        raise SettingsError(
            f"udp listens on every address ({settings.udp[0]}), but clients must know one",
            'say client_address = "HOST:PORT" (NODEMGR_CLIENT_ADDRESS)',
            "usage",
        )
    return settings
