"""`nodemgr quota set|show|rm`: what each environment may use."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from client_plugin import fields, units
from client_plugin.fields import Field
from client_plugin.messages.form import notice, sentence, stated
from client_plugin.messages.status import NO_QUOTA_YET
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.members import access_lines, membership
from client_plugin.verbs.presentation.tables import Column, SizeColumn
from client_plugin.ways.faults import Exit, Fault, say
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup
from nodemgr.messages import admins as messages

_SHOWN = {
    fields.DURATION: units.format_duration,
    fields.PERCENT: "{} %".format,
}


def _cell(field: Field, quota: tables.TableRow) -> object:
    value = quota.get(field.name)
    if value is None and field.instead:
        return quota[field.instead]
    if value is None:
        return field.absent
    if (field.needs and quota[field.needs] is None) or (field.is_rare and value == field.usual):
        return None
    return _SHOWN[field.kind](value) if field.kind in _SHOWN else value


def _column(field: Field) -> Column:
    cell = partial(_cell, field)
    if field.kind == fields.SIZE:
        return SizeColumn(field.column, cell, spare=field.spare, optional=field.is_rare)
    is_number = field.kind in (fields.COUNT, fields.PERCENT, fields.DURATION)
    return Column(field.column, cell, right=is_number, spare=field.spare, optional=field.is_rare)


COLUMNS = (
    Column("ENV", lambda q: q["env"]),
    *map(_column, fields.QUOTA),
    Column("USERS", lambda q: _members(q)),
)


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
                    stated(
                        f"this node has no {kind} {name!r}",
                        f"`getent {database}` lists them",
                        "usage",
                    )
                ) from None
        return names

    return check


@click.group(
    "quota", cls=VerbGroup, short_help="Set, show and remove what each environment may use."
)
def command() -> None:
    """Quotas: the part of this node that each environment may use.

    Changes are live: a number of GPUs holds from the next request, a memory quota from the next
    allocation of a running task.
    """


KNOWN = {
    "users": _known("user", pwd.getpwnam, "passwd"),
    "groups": _known("group", grp.getgrnam, "group"),
}


def _option(field: Field, *, is_required: bool = False) -> Callable[[options.F], options.F]:
    names = (field.option, field.name)
    if field.kind == fields.FLAG:
        return click.option(*names, is_flag=True, help=field.help)
    if field.kind == fields.NAMES:
        return click.option(
            *names,
            multiple=True,
            callback=KNOWN.get(field.name),
            metavar=field.metavar,
            help=field.help,
        )
    kind = kinds.of_field(field)
    assert kind is not None
    value = click.Choice(field.choices) if field.words else options.Parsed(kind)
    return click.option(*names, type=value, required=is_required, help=field.help)


def quota_options(*, gpus_required: bool) -> Callable[[options.F], options.F]:
    """The options of a quota."""
    gpus, *others = fields.QUOTA

    def add(function: options.F) -> options.F:
        for row in reversed([*others, *fields.members("enter", "nobody")]):
            function = _option(row)(function)
        return _option(gpus, is_required=gpus_required)(function)

    return add


@command.command("set")
@click.argument("env", type=options.ENV)
@quota_options(gpus_required=False)
@click.option(
    "--cluster", is_flag=True, help="Of the cluster: --gpus is the total over all its nodes."
)
@click.option(
    "--per-node",
    type=click.IntRange(0, 1_024),
    metavar="N",
    help="Of the cluster: the most GPUs on one node.",
)
@options.run_dir_option
@options.json_option
def set_quota(
    env: str,
    run_dir: str | None,
    as_json: bool,
    cluster: bool,
    per_node: int | None,
    **said: Any,
) -> None:
    """Set the quota of ENV, or make ENV (with --gpus).

    An option that is not given keeps its value. The quotas together may exceed the node: only
    grants are limited by it.

    With --cluster the head keeps the quota, and each node gets it.
    """
    if cluster or per_node is not None:
        part = {} if per_node is None else {"per_node": per_node}
        told = asking.cluster(run_dir).call("env_set", env=env, **arguments_of(said), **part)
        _show_cluster(told, as_json)
        return
    result = asking.control(run_dir).call("quota_set", env=env, **arguments_of(said))
    say_changes(result, f"environment {env}")
    if as_json:
        tables.print_json({"schema_version": 1, "quota": result["quota"]})
    else:
        tables.show(COLUMNS, [result["quota"]])


CLUSTER_COLUMNS = (
    Column("ENV", lambda q: q["env"]),
    Column("GPUS", lambda q: q["gpus"], right=True),
    Column("PER NODE", lambda q: q["per_node"], right=True),
    Column("USED", lambda q: q["gpus_used"], right=True),
    Column("USERS", lambda q: _members(q)),
)


def _show_cluster(told: tables.TableRow, as_json: bool) -> None:
    for warning in told["warnings"]:
        say(messages.WARNING(line=warning))
    if as_json:
        tables.print_json({"schema_version": 1, "env": told["env"]})
    else:
        tables.show(CLUSTER_COLUMNS, [told["env"]])


def say_changes(result: tables.TableRow, whose: str) -> None:
    for warning in result["warnings"]:
        say(messages.WARNING(line=warning))
    for line in access_lines(result, whose):
        say(line)


def arguments_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The manager's arguments: an absent key keeps its value, None unsets it."""
    if values["nobody"] and (values["users"] or values["groups"]):
        raise click.UsageError(
            stated("--nobody together with --user or --group", "name one of them", "usage")
        )
    said = fields.said(fields.QUOTA, values)
    per_gpu_bytes = said.pop("memory_per_gpu_bytes", None)
    if per_gpu_bytes is not None:
        said["memory_bytes"] = _memory_of_all(per_gpu_bytes, said)
    return said | membership(values, values["users_only"] or values["nobody"])


def _memory_of_all(per_gpu_bytes: int, said: dict[str, Any]) -> int:
    if "memory_bytes" in said:
        raise click.UsageError(
            stated("--memory and --memory-per-gpu set the same limit", "name one of them", "usage")
        )
    if "gpus" not in said:
        raise click.UsageError(
            stated("--memory-per-gpu needs a number of GPUs", "name it with --gpus", "usage")
        )
    if said["gpus"] == 0:
        raise click.UsageError(
            stated(
                "--memory-per-gpu with --gpus 0, where there is no GPU to have memory on",
                "leave --memory-per-gpu out",
                "usage",
            )
        )
    if per_gpu_bytes * said["gpus"] > units.MAX_SIZE_BYTES:
        raise click.UsageError(
            stated(
                "--memory-per-gpu times --gpus is more memory than any node has",
                "name less",
                "usage",
            )
        )
    return int(per_gpu_bytes * said["gpus"])


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
        control.call("queue_create", **queue)
    for env, said in saved.quotas.items():
        try:
            result = control.call("quota_set", env=env, **said)
        except Fault as fault:
            if fault.code == Exit.UNREACHABLE:
                raise
            failed.append(env)
            say(f"{env}: {fault.message}")
        else:
            for warning in result["warnings"]:
                say(f"warning: {env}: {warning}")
    say(f"{len(saved.quotas) - len(failed)} of {len(saved.quotas)} quotas are set")
    if failed:
        raise Fault(
            f"not set: {', '.join(failed)}",
            "mend what the lines above name, and load the file again",
        )


def force_option(function: options.F) -> options.F:
    return click.option(
        "--force",
        is_flag=True,
        help="Also where something runs: its tasks lose their GPUs, its requests are refused, its"
        " jobs end.",
    )(function)


cluster_option = click.option(
    "--cluster", is_flag=True, help="Of the cluster: on all its nodes. It must have no job."
)


@command.command("rm", short_help="Forget ENV.")
@click.argument("env", type=options.ENV)
@force_option
@cluster_option
@options.run_dir_option
def remove_quota(env: str, force: bool, cluster: bool, run_dir: str | None) -> None:
    """Forget ENV and its quota, as env rm does.

    If tasks run or requests wait in it, this names them and does nothing without --force.
    """
    if cluster:
        remove_from_cluster(env, run_dir)
        return
    for warning in remove(env, force, run_dir):
        say(messages.WARNING(line=warning))
    say(f"{env} is removed")


def remove_from_cluster(env: str, run_dir: str | None) -> None:
    """At the head, which has each node forget it."""
    asking.cluster(run_dir).call("env_rm", env=env)
    say(f"{env} is removed from the cluster; a node where its tasks run keeps it until they end")


def remove(env: str, force: bool, run_dir: str | None) -> list[str]:
    """Returns the manager's warnings.

    Without `force` the manager refuses where something runs or waits, and it is printed here.
    """
    control = asking.control(run_dir)
    if not force:
        for line in _in_use(control.call("env_show", env=env)["envs"][0]):
            say(line)
    warnings: list[str] = control.call("quota_rm", env=env, force=force)["warnings"]
    return warnings


def _in_use(env: tables.TableRow) -> list[str]:
    tasks = [
        messages.TASK_RUNS(
            task=task["id"],
            command=task["command"],
            pids=", ".join(f"pid {pid}" for pid in task["pids"]) or "no process uses CUDA yet",
        )
        for task in env["tasks"]
    ]
    waiting = [notice(f"{request} waits") for request in env["waiting"]]
    return [
        *tasks,
        *waiting,
        *(notice(f"{job} is a job that has not ended") for job in env["jobs"]),
    ]
