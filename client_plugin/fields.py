"""The fields of a request, a job and a quota: a row each. Every border is derived from the rows.

Knows: a field's name, kind, bounds, unit, option, variable, wire key, column and help. Must not
know: sockets, JSON, parsers, the use of a value. It is loaded in users' processes: imports are
relative. CONTRIBUTING.md, "Add a field", names the files of a new row.
"""

from __future__ import annotations

from . import units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    Wish = Dict[str, Any]
    """The resources that a command asks for, by the names of RUN; an absent one was not named."""

COUNT, SIZE, DURATION, PERCENT, WORD = "count", "size", "duration", "percent", "word"
FLAG, FILE, TEXT, QUEUE, JOBS, ARRAY = "flag", "file", "text", "queue", "jobs", "array"
NAMES, SIGNAL = "names", "signal"
REPEATED = (JOBS, NAMES)
LISTS = (FLAG, TEXT, JOBS, ARRAY, SIGNAL)
"""The kinds. A COUNT is a whole number, a SIZE bytes, a DURATION ms, a WORD one of `words`."""

MAX_GPUS = 1_024
MAX_RESTARTS = 1_000
MAX_ARRAY = 10_000
MAX_MODELS, MAX_MODEL_CHARACTERS = 16, 96
"""The GPU models in one order for a forecast, and the length of a name."""
MAX_CPUS = 65_536
SIGNALS = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM")
MAX_SIGNAL_MS = 600_000
"""A shutdown of the node waits so long (nodemgr/_service/nodemgr-jobs.service, TimeoutStopSec)."""
MAX_YIELD_MS = 60_000
"""A latency-sensitive task waits so long between a best-effort job's signal and its TERM."""
RUN_AND_SUBMIT = ("run", "submit")
ENFORCE = ("warn", "fence", "kill")
"""The actions on processes that the audit finds, the mildest first (core/lifecycle/audit.py)."""
WHEN_IDLE = ("keep", "suspend", "release")
"""The actions on an idle task that another one waits for."""
PLACEMENTS = ("auto", "reliable", "spread", "pack", "index", "learned")
"""The orders of fresh GPUs (core/placement): `auto` is `reliable` once failures are recorded."""


HIGHEST = {
    SIZE: units.MAX_SIZE_BYTES, DURATION: units.MAX_DURATION_MS, PERCENT: units.WHOLE_PERCENT
}  # fmt: skip


class Field:
    """A row. Integers are in the unit of the name: `_bytes`, `_ms`, `_percent`."""

    __slots__ = (
        "absent", "column", "default", "help", "high", "instead", "is_ordered", "is_rare", "kind",
        "low", "metavar", "most", "name", "needs", "option", "spare", "unset", "usual", "variable",
        "verbs", "wire", "words",
    )  # fmt: skip

    def __init__(
        self, name: str, kind: str, help: str = "", *, option: str = "", default: str = "",
        low: int = 0, high: int = 0, words: Tuple[str, ...] = (), metavar: Optional[str] = None,
        verbs: Tuple[str, ...] = ("submit",), is_ordered: bool = True, most: str = "",
        variable: str = "", wire: str = "", unset: str = "", column: str = "", spare: int = 0,
        is_rare: bool = False, usual: Any = None, absent: Optional[str] = None, instead: str = "",
        needs: str = "",
    ) -> None:  # fmt: skip
        """`option`: empty: made of the name. `default`: what holds without it, for the help.

        `verbs`: those of users that have the option. `is_ordered`: an argument of `job_submit`.
        `most`: the field with the end of a range, whose least value this is; both have one option
        and one variable. `unset`: the word of the option for None. `column`: its title in
        `nodemgr quota show`, which `is_rare` where some quota has another value than None and
        `usual`. The cell of None is `absent`, or the value of the field `instead`. `needs`: another
        field without which it has no effect.
        """
        self.name = name
        self.kind = kind
        self.help = help
        self.option = option or "--" + name.replace("_", "-")
        self.default = default
        self.low = units.MIN_SIZE_BYTES if kind == SIZE else 1 if kind == PERCENT else low
        self.high = HIGHEST.get(kind) or high
        self.words = words
        self.metavar = metavar
        self.verbs = verbs
        self.is_ordered = is_ordered
        self.most = most
        self.variable = variable
        self.wire = wire
        self.unset = unset
        self.column = column
        self.spare = spare
        self.usual = usual
        self.absent = absent
        self.is_rare = is_rare
        self.instead = instead
        self.needs = needs

    @property
    def most_on_wire(self) -> int:
        """The bound of a number in a packet: above any sensible value."""
        return {COUNT: 1 << 31, SIZE: 1 << 60, DURATION: 1 << 40}.get(self.kind, self.high)

    @property
    def least_on_wire(self) -> int:
        return 0 if self.kind == SIZE else self.low

    @property
    def per_variable(self) -> int:
        """The unit of its variable in its own."""
        return 1_000 if self.kind == DURATION else 1

    @property
    def is_plain_wish(self) -> bool:
        """A number whose variable csrc/client reads by this row alone; there 0 is: not named."""
        return bool(self.variable and self.wire and self.low and not self.most)

    @property
    def choices(self) -> List[str]:
        """The words of the option."""
        return [*self.words, self.unset] if self.unset else [*self.words]

    def of_variable(self, text: str) -> Any:
        """The value of `as_variable`; None: it is none. Raises UnitError."""
        if self.kind == WORD:
            return text
        if self.kind == PERCENT:
            text = text.rstrip("%")
        if not (text.isascii() and text.isdigit()):
            return units.parse_size(text) if self.kind == SIZE else None
        return int(text) * self.per_variable

    def as_variable(self, value: Any) -> str:
        """The text of a variable: bytes, seconds, percent with their sign."""
        if self.kind == DURATION:
            return str(-(-value // self.per_variable))
        return f"{value}%" if self.kind == PERCENT else str(value)


RUN = (
    Field(
        "gpus", COUNT, "GPUs, or a range such as 2-8; 0: none.", high=MAX_GPUS, most="gpus_max",
        verbs=RUN_AND_SUBMIT, variable="NODEMGR_GPUS", wire="gpus",
        default="the default of the quota",
    ),
    Field("gpus_max", COUNT, option="--gpus", low=1, high=MAX_GPUS, verbs=(), wire="gpus_max"),
    Field(
        "elastic", FLAG,
        "It gets idle GPUs and gives them back while it runs, within the range of --gpus; one"
        " process of COMMAND on each.",
        verbs=RUN_AND_SUBMIT, is_ordered=False,
    ),
    Field(
        "checkpoint", FILE,
        "The checkpoint of an elastic script that does not use nodemgr_client.elastic: it starts"
        " again from there at each change.",
        verbs=RUN_AND_SUBMIT, is_ordered=False, default="none",
    ),
    Field(
        "memory_bytes", SIZE,
        "Device memory that it has on each GPU for sure, and its limit, e.g. 8GiB; of a range such"
        " as 8GiB-24GiB the rest comes and goes with the load. With it a job may share a GPU with"
        " tasks of its environment that leave so much free; without it, it waits for GPUs of its"
        " own.",
        option="--memory", most="memory_max_bytes", verbs=RUN_AND_SUBMIT,
        variable="NODEMGR_MEMORY", wire="memory", default="its part of the quota",
    ),
    Field("memory_max_bytes", SIZE, option="--memory", verbs=(), wire="memory_max"),
    Field(
        "cpus", COUNT, "Processors that it may use; a job reserves them.", low=1, high=MAX_CPUS,
        verbs=RUN_AND_SUBMIT, default="of a job as the node sets per GPU, else all",
    ),
    Field(
        "host_memory_bytes", SIZE,
        "The limit of its host memory, e.g. 32GiB: beyond it all its processes are ended. A job"
        " reserves it.",
        option="--host-memory", verbs=RUN_AND_SUBMIT,
        default="of a job as the node sets per GPU, else without limit",
    ),
    Field(
        "wait_ms", DURATION, "How long to wait for GPUs at most, e.g. 10min; 0: not at all.",
        option="--wait", verbs=("run",), is_ordered=False, variable="NODEMGR_WAIT",
        wire="wait_ms", default="without limit",
    ),
    Field(
        "priority", QUEUE, "The queue to wait in (nodemgr queue lists them).",
        default="the queue that the quota names",
    ),
    Field(
        "after", JOBS, "Only when these jobs have ended well: j3,j4 (repeatable).", metavar="JOB",
        default="it waits for no other job",
    ),
    Field(
        "array", ARRAY, "One job for each index, which it finds in NODEMGR_ARRAY_INDEX.",
        metavar="0-9,12", default="one job",
    ),
    Field(
        "time_limit_ms", DURATION, "The job is ended after this running time, e.g. 2h.",
        option="--time", low=1, default="without limit",
    ),
    Field(
        "signal", SIGNAL,
        "A signal to the job's process this long before it is ended: at its time limit, a shutdown"
        " of the node, or for a task that needs its GPU; e.g. USR1@60s.",
        metavar="USR1@60s", default="none: TERM, and 30 s later KILL",
    ),
    Field(
        "task_class", WORD,
        "latency-sensitive, normal or best-effort (gets what the others leave).",
        option="--class", words=units.TASK_CLASSES, verbs=RUN_AND_SUBMIT,
        variable="NODEMGR_CLASS", wire="class", default="the class of the quota",
    ),
    Field(
        "compute_percent", PERCENT, "The share of each GPU's compute that it needs, e.g. 30%.",
        option="--compute", verbs=RUN_AND_SUBMIT, variable="NODEMGR_COMPUTE", wire="compute",
        default="the share of the quota; for a class without one, the whole GPU",
    ),
    Field(
        "deadline_ms", DURATION, "It should end within this time from its start, e.g. 2h.",
        option="--deadline", low=1, verbs=RUN_AND_SUBMIT, variable="NODEMGR_DEADLINE",
        wire="deadline_ms", default="none",
    ),
    Field(
        "max_restarts", COUNT, "How often the job is tried again after a failure.",
        high=MAX_RESTARTS, default="as its queue says, else 0",
    ),
    Field(
        "visible_as", WORD, "CUDA_VISIBLE_DEVICES names GPUs by uuid, or by index.",
        option="--visible", words=("uuid", "index"), metavar="FORM", verbs=RUN_AND_SUBMIT,
        is_ordered=False, variable="NODEMGR_VISIBLE_AS", default="uuid",
    ),
    Field("name", TEXT, "The job's name in lists."),
    Field("hold", FLAG, "The job waits until it is unheld: nodemgr queue unhold JOB."),
)  # fmt: skip
"""The fields of a request and a job, in the order of the help."""


QUOTA = (
    Field("gpus", COUNT, "GPUs at a time.", high=MAX_GPUS, column="GPUS"),
    Field(
        "memory_bytes", SIZE,
        "Device memory over all its GPUs, e.g. 80GiB; none: whole GPUs.",
        option="--memory", unset="none", column="MEMORY", absent="whole GPUs",
        default="whole GPUs",
    ),
    Field(
        "memory_per_gpu_bytes", SIZE, "The same, as memory of each GPU.",
        option="--memory-per-gpu", is_ordered=False, column="PER GPU", spare=1,
        default="whole GPUs",
    ),
    Field(
        "default_gpus", COUNT, "GPUs of a request that names no number; none: all.",
        high=MAX_GPUS, unset="none", column="DEFAULT", spare=5, default="all of --gpus",
    ),
    Field(
        "priority", QUEUE,
        "The queue its requests wait in (nodemgr queue create makes more).",
        column="QUEUE", default="normal",
    ),
    Field(
        "max_priority", QUEUE,
        "The highest queue that its users may ask for (submit --priority, queue move); none: its"
        " own.",
        unset="none", column="UP TO", spare=7, instead="priority",
        default="the queue of --priority",
    ),
    Field(
        "acquire", WORD, "When a program asks for its GPUs.", words=("import", "first-use"),
        column="ACQUIRE", spare=2, default="first-use",
    ),
    Field(
        "no_gpu", WORD, "What a program gets when its request is refused.", words=("cpu", "error"),
        column="NO GPU", spare=4, default="error",
    ),
    Field(
        "no_manager", WORD, "What a program does while no manager answers.",
        words=("wait", "cpu", "error"), column="NO MANAGER", spare=6, default="wait",
    ),
    Field(
        "enforce", WORD, "The action against programs that bypass the quota.", words=ENFORCE,
        unset="default", column="ENFORCE", spare=3, absent="node's",
        default="default: as the settings say",
    ),
    Field(
        "task_class", WORD,
        "The highest class of its tasks, and the class of a task that names none.",
        option="--class", words=units.TASK_CLASSES, column="CLASS", spare=1, is_rare=True,
        usual=units.NORMAL, default="normal",
    ),
    Field(
        "compute_percent", PERCENT,
        "The share of each GPU's compute that a task may have, and has by default, e.g. 40%.",
        option="--compute", unset="none", column="COMPUTE", spare=1, is_rare=True,
        default="none: no share",
    ),
    Field(
        "idle_ms", DURATION,
        "A task that uses no GPU for this time is idle, e.g. 30min; none: no task ever is.",
        option="--idle", low=1_000, unset="none", column="IDLE", spare=1, is_rare=True,
        default="none: no task ever is",
    ),
    Field(
        "when_idle", WORD,
        "What an idle task's GPU memory becomes when another task waits for it.",
        words=WHEN_IDLE, column="WHEN IDLE", spare=1, is_rare=True, needs="idle_ms",
        default="keep: nothing",
    ),
    Field(
        "placement", WORD, "The order of its fresh GPUs.", words=PLACEMENTS, unset="default",
        column="PLACEMENT", spare=2, is_rare=True, default="default: the queue's or the node's",
    ),
    Field(
        "max_keep_ms", DURATION,
        "The longest time that a user may keep an idle task (nodemgr keep).",
        option="--max-keep", column="MAX KEEP", spare=1, is_rare=True, needs="idle_ms",
        default="8h",
    ),
    Field(
        "borrow", COUNT, "The idle GPUs beyond the quota that its elastic tasks may use.",
        high=MAX_GPUS, column="BORROW", spare=1, is_rare=True, usual=0, default="0",
    ),
    Field(
        "cpus", COUNT, "The processors of all its jobs together; none: no limit.",
        low=1, high=MAX_CPUS, unset="none", column="CPUS", spare=1, is_rare=True,
        default="none: no limit",
    ),
    Field(
        "host_memory_bytes", SIZE,
        "The host memory of all its jobs together, e.g. 128GiB; none: no limit.",
        option="--host-memory", unset="none", column="HOST MEMORY", spare=1, is_rare=True,
        default="none: no limit",
    ),
    Field(
        "forecast", WORD,
        "Whether figures of earlier runs of a command are kept, and filled in when it comes again.",
        words=("on", "off"), column="FORECAST", spare=1, is_rare=True, usual="on", default="on",
    ),
)  # fmt: skip
"""The fields of a quota but its users and groups, in the order of the columns."""
OF_QUEUE = (
    Field(
        "rank", COUNT,
        "A higher rank is served first: high 300, normal 200, low 100. A new queue needs it.",
        low=1, high=1_000_000, default="the rank that the queue has",
    ),
    Field(
        "cap", COUNT, "The most that may wait in it; more are refused. none: no bound.",
        high=1_000_000, unset="none", default="without limit",
    ),
    Field(
        "max_restarts", COUNT,
        "How often a job that fails is tried again at the end of this queue, where submit names no"
        " number.",
        high=MAX_RESTARTS, default="0",
    ),
    Field(
        "placement", WORD,
        "The order of fresh GPUs for its requests: auto, reliable, spread, pack, index; default:"
        " the node's.",
        words=PLACEMENTS, metavar="ORDER", unset="default", default="the node's",
    ),
)  # fmt: skip
"""The settings of a queue but its users and groups."""
PRESETS = ("high", "normal", "low")
"""The queues that each node begins with."""


def members(may: str, nobody: str) -> Tuple[Field, ...]:
    """The options of the users and groups of a quota or a queue, who `may` do this.

    `nobody`: the option that forgets them.
    """
    return (
        Field(
            "users", NAMES, f"A user that may {may}, too (repeatable).", option="--user",
            metavar="USER",
        ),
        Field("groups", NAMES, "The same for a group.", option="--group", metavar="GROUP"),
        Field(
            "no_users", NAMES, f"A user that may no longer {may} (repeatable).",
            option="--no-user", metavar="USER",
        ),
        Field("no_groups", NAMES, "The same for a group.", option="--no-group", metavar="GROUP"),
        Field(
            "users_only", FLAG,
            "Only the users and groups that are named here; of those named before, no other.",
        ),
        Field(nobody, FLAG, "Forget the users and groups named before."),
    )  # fmt: skip


ORDERED = tuple(field for field in RUN if field.is_ordered)
"""Arguments of the order `job_submit`."""
OF_RUN, OF_SUBMIT = (tuple(row for row in RUN if verb in row.verbs) for verb in RUN_AND_SUBMIT)
"""The options of a verb."""
ALL = (*RUN, *QUOTA, *OF_QUEUE)
NUMBERS_ON_WIRE = tuple(field for field in RUN if field.wire and field.high)
"""Numbers of an ACQUIRE."""


def wished(given: Mapping[str, Any]) -> Wish:
    """The given values by the names of their fields: a range is two of them."""
    found: Wish = {}
    for field in RUN:
        value = given.get(field.name)
        if value is None or value is False or value == []:
            continue
        if field.most:
            value, most = value
            if most is not None:
                found[field.most] = most
        found[field.name] = value
    return found


def said(rows: Tuple[Field, ...], values: Mapping[str, Any]) -> Dict[str, Any]:
    """Arguments of an order that keeps what is not named; the word that unsets a field is None."""
    return {
        row.name: None if row.unset and values[row.name] == row.unset else values[row.name]
        for row in rows
        if values[row.name] is not None
    }


def asked(environ: Mapping[str, str]) -> Dict[str, Any]:
    """Keys of an ACQUIRE, of the variables; numbers that are none are left out. Raises UnitError.

    A SIZE may also have its unit.
    """
    found: Dict[str, Any] = {}
    for row in RUN:
        text = environ.get(row.variable) if row.wire else None
        if not text:
            continue
        least, _, most = text.partition("-") if row.most else (text, "", "")
        for key, part in ((row.wire, least), (f"{row.wire}_max", most)):
            if part and (value := row.of_variable(part)) is not None:
                found[key] = value
    return found


def variables(wish: Mapping[str, Any]) -> Dict[str, str]:
    """Variables by which the clients in a command get the wishes."""
    found = {}
    for field in RUN:
        value = wish.get(field.name) if field.variable else None
        if value is not None:
            most = wish.get(field.most)
            text = field.as_variable(value)
            found[field.variable] = text if most is None else f"{text}-{field.as_variable(most)}"
    return found
