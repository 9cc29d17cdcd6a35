"""`nodemgr quota set|show|rm`: what each environment may use."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable
from typing import Any

import click

from client_plugin import units
from client_plugin.messages.arguments import SHORT_IDLE
from client_plugin.messages.form import MessageLine, sentence
from client_plugin.messages.status import NO_QUOTA_YET
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.members import access_lines, membership
from client_plugin.verbs.presentation.tables import Column, SizeColumn
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault, say
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup
from nodemgr.core.model.policy_names import ENFORCE, MIN_IDLE_MS, WHEN_IDLE
from nodemgr.core.placement.orders import PLACEMENTS
from nodemgr.messages import admins as messages

MAX_GPUS = 1_024


def _parse_idle_ms(text: str) -> int:
    """Raises UnitError."""
    idle_ms = units.parse_duration_ms(text)
    if idle_ms < MIN_IDLE_MS:
        raise units.UnitError(SHORT_IDLE(text=text))
    return idle_ms


IDLE_OR_NONE = options.Unit("duration", _parse_idle_ms, none_is="none")
COLUMNS = (
    Column("ENV", lambda q: q["env"]),
    Column("GPUS", lambda q: q["gpus"], right=True),
    SizeColumn("MEMORY", lambda q: q["memory_bytes"] or "whole GPUs"),
    SizeColumn("PER GPU", lambda q: q["memory_per_gpu_bytes"], spare=1),
    Column("DEFAULT", lambda q: q["default_gpus"], right=True, spare=5),
    Column("QUEUE", lambda q: q["priority"]),
    Column("UP TO", lambda q: q["max_priority"] or q["priority"], spare=7),
    Column("ACQUIRE", lambda q: q["acquire"], spare=2),
    Column("NO GPU", lambda q: q["no_gpu"], spare=4),
    Column("NO MANAGER", lambda q: q["no_manager"], spare=6),
    Column("ENFORCE", lambda q: q["enforce"] or "node's", spare=3),
    Column("CLASS", lambda q: _class(q), spare=1, optional=True),
    Column(
        "COMPUTE",
        lambda q: cells.figure(q, "compute_percent", "%"),
        right=True,
        spare=1,
        optional=True,
    ),
    Column("IDLE", lambda q: _idle(q), right=True, spare=1, optional=True),
    Column("WHEN IDLE", lambda q: q["when_idle"] if q["idle_ms"] else None, spare=1, optional=True),
    Column("PLACEMENT", lambda q: q.get("placement"), spare=2, optional=True),
    Column("MAX KEEP", lambda q: _max_keep(q), right=True, spare=1, optional=True),
    Column("BORROW", lambda q: q.get("borrow") or None, right=True, spare=1, optional=True),
    Column("USERS", lambda q: _members(q)),
)


def _class(quota: tables.TableRow) -> str | None:
    return None if quota["task_class"] == units.NORMAL else quota["task_class"]


def _idle(quota: tables.TableRow) -> str | None:
    return None if quota["idle_ms"] is None else units.format_duration(quota["idle_ms"])


def _max_keep(quota: tables.TableRow) -> str | None:
    return units.format_duration(quota["max_keep_ms"]) if quota["idle_ms"] else None


def _members(quota: tables.TableRow) -> str:
    names = [*quota["users"], *("@" + group for group in quota["groups"])]
    return ",".join(names) or "the manager's user"


def _known(
    kind: str, find: Callable[[str], object], database: str
) -> Callable[..., tuple[str, ...]]:
    """An option's callback: `find` raises KeyError for a name that this node does not have.

    A number needs no entry on the node: users of images have none. The manager has its limits.
    """

    def check(
        _ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
    ) -> tuple[str, ...]:
        for name in names:
            try:
                find(name)
            except KeyError:
                if name.removeprefix("+").isdecimal():
                    continue
                raise click.BadParameter(
                    messages.UNKNOWN_ON_NODE(kind=kind, name=name, database=database)
                ) from None
        return names

    return check


_known_user = _known("user", pwd.getpwnam, "passwd")
_known_group = _known("group", grp.getgrnam, "group")


@click.group(
    "quota", cls=VerbGroup, short_help="Set, show and remove what each environment may use."
)
def command() -> None:
    """Quotas: the part of this node that each environment may use.

    Changes are live: a number of GPUs holds from the next request, a memory quota from the next
    allocation of a running task.
    """


def _gpus_or_none(
    _ctx: click.Context, parameter: click.Parameter, text: str | None
) -> int | str | None:
    if text is None or text == "none":
        return text
    if (
        not text.isascii()
        or not text.isdecimal()
        or not 0 <= int(text[:9]) <= MAX_GPUS
        or len(text) > 9
    ):
        raise click.BadParameter(messages.NOT_GPU_NUMBER(text=text, limit=MAX_GPUS))
    return int(text)


QUOTA_OPTIONS = (
    click.option(
        "--memory",
        type=options.SIZE_OR_NONE,
        help="Device memory over all its GPUs, e.g. 80GiB; none: whole GPUs.",
    ),
    click.option("--memory-per-gpu", type=options.SIZE, help="The same, as memory of each GPU."),
    click.option(
        "--default-gpus",
        callback=_gpus_or_none,
        metavar="N",
        help="GPUs of a request that names no number; none: all.",
    ),
    click.option(
        "--priority",
        type=options.QUEUE,
        metavar="QUEUE",
        help="The queue its requests wait in (nodemgr queue create makes more).",
    ),
    click.option(
        "--max-priority",
        type=options.QUEUE,
        metavar="QUEUE",
        help=(
            "The highest queue that its users may ask for (submit --priority, queue move); none:"
            " its own."
        ),
    ),
    click.option(
        "--acquire",
        type=click.Choice(["import", "first-use"]),
        help="When a program asks for its GPUs.",
    ),
    click.option(
        "--no-gpu",
        type=click.Choice(["cpu", "error"]),
        help="What a program gets when its request is refused.",
    ),
    click.option(
        "--no-manager",
        type=click.Choice(["wait", "cpu", "error"]),
        help="What a program does while no manager answers.",
    ),
    click.option(
        "--enforce",
        type=click.Choice([*ENFORCE, "default"]),
        help="The action against programs that bypass the quota.",
    ),
    click.option(
        "--compute",
        "compute_percent",
        type=options.PERCENT_OR_NONE,
        help="The share of each GPU's compute that a task may have, and has by default, e.g. 40%.",
    ),
    click.option(
        "--class",
        "task_class",
        type=click.Choice(units.TASK_CLASSES),
        help="The highest class of its tasks, and the class of a task that names none.",
    ),
    click.option(
        "--idle",
        "idle_ms",
        type=IDLE_OR_NONE,
        help="A task that uses no GPU for this time is idle, e.g. 30min; none: no task ever is.",
    ),
    click.option(
        "--when-idle",
        type=click.Choice(WHEN_IDLE),
        help="What an idle task's GPU memory becomes when another task waits for it.",
    ),
    click.option(
        "--max-keep",
        "max_keep_ms",
        type=options.DURATION,
        help="The longest time that a user may keep an idle task (nodemgr keep).",
    ),
    click.option(
        "--borrow",
        type=options.Count(0, MAX_GPUS),
        help="The idle GPUs beyond the quota that its elastic tasks may use.",
    ),
    click.option(
        "--placement",
        type=click.Choice([*PLACEMENTS, "default"]),
        help="The order of its fresh GPUs.",
    ),
    click.option(
        "--user",
        "users",
        multiple=True,
        callback=_known_user,
        metavar="USER",
        help="A user that may enter, too (repeatable).",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        callback=_known_group,
        metavar="GROUP",
        help="The same for a group.",
    ),
    click.option(
        "--no-user",
        "no_users",
        multiple=True,
        metavar="USER",
        help="A user that may no longer enter (repeatable).",
    ),
    click.option(
        "--no-group", "no_groups", multiple=True, metavar="GROUP", help="The same for a group."
    ),
    click.option(
        "--users-only",
        is_flag=True,
        help="Only the users and groups that are named here; of those named before, no other.",
    ),
    click.option("--nobody", is_flag=True, help="Forget the users and groups named before."),
)
"""The options of a quota; `env create` takes the same."""


UNSET_BY = {
    "enforce": "default",
    "max_priority": "none",
    "compute_percent": "none",
    "idle_ms": "none",
    "placement": "default",
}
"""The word that unsets a policy."""


def quota_options(*, gpus_required: bool) -> Callable[[options.F], options.F]:
    gpus = click.option(
        "--gpus", type=options.Count(0, MAX_GPUS), required=gpus_required, help="GPUs at a time."
    )

    def add(function: options.F) -> options.F:
        for option in (*reversed(QUOTA_OPTIONS), gpus):
            function = option(function)
        return function

    return add


@command.command("set")
@click.argument("env", type=options.ENV)
@quota_options(gpus_required=False)
@options.run_dir_option
@options.json_option
def set_quota(env: str, run_dir: str | None, as_json: bool, nobody: bool, **said: Any) -> None:
    """Set the quota of ENV, or make ENV (with --gpus).

    An option that is not given keeps its value. The quotas together may exceed the node: only
    grants are limited by it.
    """
    result = asking.control(run_dir).call(
        "quota_set", env=env, **arguments_of(nobody=nobody, **said), by=choice.user()
    )
    say_changes(result, f"environment {env}")
    if as_json:
        tables.print_json({"schema_version": 1, "quota": result["quota"]})
    else:
        tables.show(COLUMNS, [result["quota"]])


def say_changes(result: tables.TableRow, whose: str) -> None:
    for warning in result["warnings"]:
        say(messages.WARNING(line=warning))
    for line in access_lines(result, whose):
        say(line)


def arguments_of(
    *, gpus: int | None, memory: int | str | None, memory_per_gpu: int | None,
    default_gpus: int | str | None,
    users: tuple[str, ...], groups: tuple[str, ...], nobody: bool, no_users: tuple[str, ...],
    no_groups: tuple[str, ...], users_only: bool, **policies: int | str | None,
) -> dict[str, Any]:  # fmt: skip
    """The manager's arguments: an absent key keeps its value, None unsets it."""
    if memory is not None and memory_per_gpu is not None:
        raise click.UsageError(messages.MEMORY_TWICE())
    if nobody and (users or groups):
        raise click.UsageError(messages.NOBODY_AND_USERS())
    said: dict[str, Any] = {
        name: value for name, value in {"gpus": gpus, **policies}.items() if value is not None
    }
    for name, word in UNSET_BY.items():
        if said.get(name) == word:
            said[name] = None
    if memory_per_gpu is not None:
        if gpus is None:
            raise click.UsageError(messages.PER_GPU_WITHOUT_GPUS())
        if gpus == 0:
            raise click.UsageError(messages.PER_GPU_OF_NONE())
        if memory_per_gpu * gpus > units.MAX_SIZE_BYTES:
            raise click.UsageError(messages.MEMORY_ABOVE_ANY_NODE())
        said["memory_bytes"] = memory_per_gpu * gpus
    if memory is not None:
        said["memory_bytes"] = None if memory == "none" else memory
    if default_gpus is not None:
        said["default_gpus"] = None if default_gpus == "none" else default_gpus
    return said | membership(users, groups, no_users, no_groups, users_only or nobody)


@command.command("show")
@click.argument("env", type=options.ENV, required=False)
@options.run_dir_option
@options.json_option
def show_quotas(env: str | None, run_dir: str | None, as_json: bool) -> None:
    """Show the quota of ENV, or of every environment."""
    result = asking.control(run_dir).call("quota_show", **({"env": env} if env else {}))
    if as_json:
        tables.print_json(result)
    else:
        tables.show(
            COLUMNS,
            result["quotas"],
            empty=sentence(NO_QUOTA_YET()),
        )


@command.command(
    "load",
    short_help="Set the quotas in FILE: the output of quota show --json, or an older state.db.",
)
@click.argument("file", type=click.Path(allow_dash=True))
@options.run_dir_option
def load_quotas(file: str, run_dir: str | None) -> None:
    """Set every quota in FILE, the output of nodemgr quota show --json (-: on stdin).

    FILE may also be the state.db of a manager of any version: its queues are made, too.
    Environments that FILE does not name stay as they are.
    """
    control = asking.control(run_dir)
    # it imports the model and SQLite, which no other verb needs
    from nodemgr.cli.admins import quota_files

    saved = quota_files.read(file)
    failed = []
    for queue in saved.queues:
        control.call("queue_create", **queue, by=choice.whose())
    for env, said in saved.quotas.items():
        try:
            result = control.call("quota_set", env=env, **said, by=choice.user())
        except Fault as fault:
            if fault.code == Exit.UNREACHABLE:
                raise
            failed.append(env)
            say(messages.FAILURE_OF_ENV(env=env, line=fault.message))
        else:
            for warning in result["warnings"]:
                say(messages.WARNING_OF_ENV(env=env, line=warning))
    say(messages.QUOTAS_SET(count=len(saved.quotas) - len(failed), all=len(saved.quotas)))
    if failed:
        raise Fault(messages.QUOTAS_NOT_SET(envs=", ".join(failed)))


def force_option(function: options.F) -> options.F:
    return click.option(
        "--force",
        is_flag=True,
        help=(
            "Also where something runs: its tasks lose their GPUs, its requests are refused, its"
            " jobs end."
        ),
    )(function)


@command.command("rm", short_help="Forget ENV.")
@click.argument("env", type=options.ENV)
@force_option
@options.run_dir_option
def remove_quota(env: str, force: bool, run_dir: str | None) -> None:
    """Forget ENV and its quota, as env rm does.

    If tasks run or requests wait in it, this names them and does nothing without --force.
    """
    for warning in remove(env, force, run_dir):
        say(messages.WARNING(line=warning))
    say(messages.ENV_REMOVED(env=env))


def remove(env: str, force: bool, run_dir: str | None) -> list[str]:
    """Returns the manager's warnings.

    Without `force` the manager refuses where something runs or waits, and it is printed here.
    """
    control = asking.control(run_dir)
    if not force:
        for line in _in_use(control.call("env_show", env=env)["envs"][0]):
            say(line)
    warnings: list[str] = control.call("quota_rm", env=env, force=force, by=choice.user())[
        "warnings"
    ]
    return warnings


def _in_use(env: tables.TableRow) -> list[MessageLine]:
    tasks = [
        messages.TASK_RUNS(
            task=task["id"],
            command=task["command"],
            pids=", ".join(f"pid {pid}" for pid in task["pids"]) or "no process uses CUDA yet",
        )
        for task in env["tasks"]
    ]
    waiting = [messages.REQUEST_WAITS(request=request) for request in env["waiting"]]
    return [*tasks, *waiting, *(messages.JOB_IS_LIVE(job=job) for job in env["jobs"])]
