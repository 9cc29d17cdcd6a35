"""`nodemgr env create|list|show|rm|rekey`: environments, and a container's flag for one."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import Column, SizeColumn, TableRow
from client_plugin.ways.faults import say
from nodemgr.cli.admins import asking, quota
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup
from nodemgr.messages import admins as messages

READ_BY_ENGINES = ("/etc/cdi", "/var/run/cdi")

COLUMNS = (
    Column("ENV", lambda e: e["env"]),
    Column("GPUS", lambda e: e["quota"]["gpus"], right=True),
    SizeColumn("MEMORY", lambda e: e["quota"]["memory_bytes"] or "whole GPUs"),
    Column("TASKS", lambda e: len(e["tasks"]), right=True),
    Column("WAITING", lambda e: len(e["waiting"]), right=True),
    Column("DEVICE", lambda e: e["device"]),
)
WAYS = {
    "podman": "podman run {flags} IMAGE COMMAND",
    "docker": "docker run {flags} IMAGE COMMAND",
    "compose": (
        """\
services:
  SERVICE:
    deploy:
      resources:
        reservations:
          devices:
          - {{driver: cdi, device_ids: [{quoted}], capabilities: [gpu]}}"""
    ),
    "compose, of podman": "services:\n  SERVICE:\n    devices: [{quoted}]",
    "kubernetes, in a pod": (
        """\
# a pod names no CDI device: its volumes bring it the same, without the device gate; \
the driver comes as for any other pod
spec:
  containers:
  - volumeMounts:
{volume_mounts}
  volumes:
{volumes}"""
    ),
}
"""The command line or file by which each engine brings a container in."""


@click.group(
    "env",
    cls=VerbGroup,
    short_help="Create, list, show and remove environments, and give them to containers.",
)
def command() -> None:
    """Environments: what each may use of this node, and how a container is in one: by one flag.

    Docker 25 to 27 want CDI switched on ("features": {"cdi": true} in /etc/docker/daemon.json);
    podman 4 and newer, and Docker 28 have it.
    """


@command.command("create")
@click.argument("env", type=options.ENV)
@quota.quota_options(gpus_required=True)
@options.run_dir_option
@options.json_option
def create(env: str, run_dir: str | None, as_json: bool, **said: Any) -> None:
    """Make ENV: its quota, directory, device for containers, and key for clients over UDP.

    A container with the device is in ENV, with all of its users. --user and --group name further
    users of this node that may enter.
    """
    arguments = quota.arguments_of(said)
    made = asking.control(run_dir).call("env_create", env=env, **arguments)
    quota.say_changes(made, f"environment {env}")
    if arguments.get("cpus") or arguments.get("host_memory_bytes"):
        say(
            "--cpus and --host-memory limit jobs and commands on the node, and not in a container",
            "give its engine limits: --cpus and --memory of podman and docker",
        )
    if as_json:
        tables.print_json({"schema_version": 1, "env": made["env"]})
    else:
        _show(made["env"])


@command.command("list")
@options.run_dir_option
@options.json_option
def list_all(run_dir: str | None, as_json: bool) -> None:
    """List every environment, what runs in it, and its device."""
    found = asking.control(run_dir).call("env_show")
    if as_json:
        tables.print_json(found)
    else:
        tables.show(
            COLUMNS, found["envs"], empty="No environment yet (nodemgr env create ENV --gpus N)."
        )


@command.command("show")
@click.argument("env", type=options.ENV)
@options.run_dir_option
@options.json_option
def show(env: str, run_dir: str | None, as_json: bool) -> None:
    """Show ENV: its quota, what runs in it, and the flag that brings a container in."""
    found = asking.control(run_dir).call("env_show", env=env)
    if as_json:
        tables.print_json(found)
    else:
        _show(found["envs"][0])


@command.command("rm")
@click.argument("env", type=options.ENV)
@quota.force_option
@quota.cluster_option
@options.run_dir_option
def remove(env: str, force: bool, cluster: bool, run_dir: str | None) -> None:
    """Forget ENV.

    If tasks run or requests wait in it, this names them and does nothing without --force.
    """
    if cluster:
        quota.remove_from_cluster(env, run_dir)
        return
    quota.remove(env, force, run_dir)
    say(f"{env} is removed; containers that have its device go on without GPUs")


@command.command("rekey")
@click.argument("env", type=options.ENV)
@click.option(
    "--grace",
    type=options.DURATION,
    default=0,
    help="How long the old key still counts, unless the manager restarts.",
)
@options.run_dir_option
def rekey(env: str, grace: int, run_dir: str | None) -> None:
    """Replace the key of ENV's clients over UDP, if others may know the old one.

    Copy the printed directory to the clients' machines again. A task goes on if its machine has the
    new key before the old key ends (--grace). Otherwise it falls silent, and its GPUs are taken
    back.
    """
    made = asking.control(run_dir).call("env_rekey", env=env, grace_ms=grace)
    click.echo(made["key_directory"])


def _show(env: TableRow) -> None:
    """Print the lines that an administrator copies. They are data: on stdout."""
    tables.show(COLUMNS, [env])
    if env["cdi_fault"]:
        say(messages.WARNING(line=env["cdi_fault"]))
    if env["device"] is None:
        say(
            f"warning: no container can be given {env['env']}, whose name is none for a CDI device",
            "make an environment whose name ends with a letter or digit",
        )
        return
    for engine, text in ways(env).items():
        click.echo(f"\n{engine}:\n" + "\n".join("  " + line for line in text.splitlines()))
    directory = os.path.dirname(env["cdi_file"])
    if directory not in READ_BY_ENGINES:
        say(
            f"the container engine must be told to read {directory}",
            "podman: --cdi-spec-dir; docker: cdi-spec-dirs in daemon.json",
        )
    if env["key_directory"]:
        say(
            f"clients on other machines need {env['key_directory']}",
            "copy it there, and name it in their NODEMGR_ENV_DIR",
        )


def ways(env: TableRow) -> dict[str, str]:
    """Engine -> the text that puts a container into the environment."""
    devices = [env["device"], *env["companions"]]
    mounts = [(f"nodemgr-{number}", *mount) for number, mount in enumerate(env["mounts"])]
    said = {
        "flags": " ".join(f"--device {device}" for device in devices),
        "quoted": ", ".join(f'"{device}"' for device in devices),
        "volume_mounts": "\n".join(
            f"    - {{name: {name}, mountPath: {json.dumps(there)}, readOnly:"
            f" {json.dumps(not writable)}}}"
            for name, _, there, writable in mounts
        ),
        "volumes": "\n".join(
            f"  - {{name: {name}, hostPath: {{path: {json.dumps(here)}}}}}"
            for name, here, _, _ in mounts
        ),
    }
    return {engine: form.format(**said) for engine, form in WAYS.items()}
