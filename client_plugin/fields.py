"""The fields of a request, a job and a quota: a row each. Every border is derived from the rows.

Knows: a field's name, kind, bounds, unit, option, variable, wire key, column and help. Must not
know: sockets, JSON, parsers, the use of a value. It is loaded in users' processes: imports are
relative. CONTRIBUTING.md, "Add a field", names the files of a new row.
"""

from __future__ import annotations

from . import units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Tuple

    Wish = Dict[str, Any]
    """The resources that a command asks for, by the names of RUN; an absent one was not named."""

COUNT, SIZE, DURATION, PERCENT, WORD = "count", "size", "duration", "percent", "word"
FLAG, FILE, TEXT, QUEUE, JOBS, ARRAY = "flag", "file", "text", "queue", "jobs", "array"
"""The kinds. A COUNT is a whole number, a SIZE bytes, a DURATION ms, a WORD one of `words`."""

MAX_GPUS = 1_024
MAX_RESTARTS = 1_000
RUN_AND_SUBMIT = ("run", "submit")
CONSEQUENCES = ("warn", "fence", "kill")
"""The actions on processes that the audit finds, the mildest first (core/lifecycle/audit.py)."""
WHEN_IDLE = ("keep", "suspend", "release")
"""The actions on an idle task that another one waits for."""
PLACEMENTS = ("auto", "reliable", "spread", "pack", "index", "learned")
"""The orders of fresh GPUs (core/placement)."""


HIGHEST = {
    SIZE: units.MAX_SIZE_BYTES, DURATION: units.MAX_DURATION_MS, PERCENT: units.WHOLE_PERCENT
}  # fmt: skip


class Field:
    """A row. Integers are in the unit of the name: `_bytes`, `_ms`, `_percent`."""

    __slots__ = (
        "absent", "column", "default", "help", "high", "is_ordered", "kind", "low", "metavar",
        "most", "name", "needs", "option", "spare", "unset", "usual", "variable", "verbs", "wire",
        "words",
    )  # fmt: skip

    def __init__(
        self, name: str, kind: str, help: str = "", *, option: str = "", default: str = "",
        low: int = 0, high: int = 0, words: Tuple[str, ...] = (), metavar: Optional[str] = None,
        verbs: Tuple[str, ...] = ("submit",), is_ordered: bool = True, most: str = "",
        variable: str = "", wire: str = "", unset: str = "", column: str = "", spare: int = 0,
        usual: Any = None, absent: Any = None, needs: str = "",
    ) -> None:  # fmt: skip
        """`option`: empty: made of the name. `default`: what holds without it, for the help.

        `verbs`: those of users that have the option. `is_ordered`: an argument of `job_submit`.
        `most`: the field with the end of a range, whose least value this is; both have one option
        and one variable. `unset`: the word of the option for None. `column`: its title in
        `nodemgr quota show`; `usual`: a value that needs no column; `absent`: the cell of None;
        `needs`: another field without which it has no effect.
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
        self.needs = needs

    @property
    def most_on_wire(self) -> int:
        """The bound of a number in a packet: above any sensible value."""
        return {COUNT: 1 << 31, SIZE: 1 << 60, DURATION: 1 << 40}.get(self.kind, self.high)

    @property
    def least_on_wire(self) -> int:
        return 0 if self.kind == SIZE else self.low

    @property
    def is_set(self) -> bool:
        """Of a quota: it always has a value."""
        return bool(self.column) and not self.unset

    def as_variable(self, value: Any) -> str:
        """The text of a variable: bytes, seconds, percent with their sign."""
        if self.kind == DURATION:
            return str(-(-value // 1_000))
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


ORDERED = tuple(field for field in RUN if field.is_ordered)
"""Arguments of the order `job_submit`."""
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
