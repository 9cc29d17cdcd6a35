"""`nodemgr demo`: the whole story on this machine, in some twenty lines and a few seconds.

A private manager, two environments, programs without any knowledge of nodemgr. Each step asserts
its text: every figure comes from `status` or from the event stream. A step that did not happen ends
the demo with exit 1, and the message names it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from client_plugin import units
from client_plugin.messages.form import Notice, notice
from client_plugin.verbs.presentation import cells
from client_plugin.ways.faults import Exit, Fault
from nodemgr import paths
from nodemgr.cli.admins.stage import STEP_TIMEOUT_S, NotSeen, Program, PublishedEvent, Stage
from nodemgr.cli.presentation.helps import HelpedCommand
from nodemgr.messages import demo as messages

SIMULATED_NODE = "2x16GiB"
GRANT_SHARE = 0.75
"""The share of a GPU in a grant: too much for two environments on one GPU."""
GIB = 2**30
BEYOND_BYTES = GIB
"""The bytes by which the script's larger batch exceeds its grant."""
PROBE_TIMEOUT_S = 60
CHECK_S = 20.0
REAL_TIMEOUT_S = 60.0
"""For a step on real GPUs: a real framework may take long to import, and a context to make."""


class Framework(NamedTuple):
    """The framework that the Python program of the story imports."""

    name: str
    script: str
    kind: str


STAND_IN = Framework(
    "cupy",
    "train.py",
    "not the real one but a small stand-in, examples/standin: ctypes on the CUDA driver",
)
REAL = (
    (
        Framework("torch", "train_torch.py", "the real PyTorch"),
        "import torch; assert torch.version.cuda and torch.cuda.device_count()",
    ),
    (
        Framework("cupy", "train.py", "the real CuPy"),
        "import cupy; assert cupy.cuda.runtime.getDeviceCount()",
    ),
)
"""Used on a real node where they are installed and see its GPUs."""


@dataclass
class Story:
    """The things that the steps share."""

    stage: Stage
    framework: Framework
    gpus: int
    grant_bytes: int
    script: Program | None = None
    waiter: Program | None = None
    script_task: str = ""
    waiter_task: str = ""
    waiter_gpus: tuple[int, ...] = ()


def examples_dir() -> Path:
    """The examples: in a checkout beside the package, in an installation within it."""
    inside = paths.package_dir() / "_examples"
    return inside if inside.is_dir() else paths.package_dir().parent / "examples"


HOLD = (paths.package_dir() / "_sim" / "hold", "-b", GIB)
"""A C program (examples/hold.c): it allocates once, reports that in a line of JSON, and holds.

It ends when its input closes.
"""


def narrate(text: str) -> None:
    click.echo(f"    {notice(text)}")


def size(size_bytes: int) -> str:
    return units.format_size(size_bytes)


def counted(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def grant_line(granted: PublishedEvent) -> str:
    row = (
        Notice("{task}: {gpus}, {memory} each, granted {when}")
        if len(granted["gpu_indices"]) > 1
        else Notice("{task}: {gpus}, {memory} of its memory, granted {when}")
    )
    waited_ns = granted["waited_ns"]
    when = f"after {milliseconds(waited_ns)} in the queue" if waited_ns else "at once"
    return row(
        task=granted["task"],
        gpus=gpu_names(granted),
        memory=size(granted["memory_bytes"][0]),
        when=when,
    )


def milliseconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.1f} ms"


def gpu_names(event: PublishedEvent) -> str:
    indices = event["gpu_indices"]
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


# -- the steps


def quotas(story: Story) -> None:
    for env, gpus, acquire in (("alice", story.gpus, "import"), ("bob", 1, "first-use")):
        memory_bytes = gpus * story.grant_bytes
        story.stage.call(
            "quota_set",
            env=env,
            gpus=gpus,
            memory_bytes=memory_bytes,
            default_gpus=1,
            acquire=acquire,
        )
    for row in story.stage.status()["envs"]:
        quota = row["quota"]
        narrate(
            f"{row['name']}: {counted(quota['gpus'])} with {size(quota['memory_bytes'])} in "
            f"all; asks at {quota['acquire']}"
        )


def script_gets_a_gpu(story: Story) -> None:
    beside = {"PYTHONPATH": str(examples_dir() / "standin")} if story.framework is STAND_IN else {}
    training = [
        sys.executable,
        examples_dir() / story.framework.script,
        GIB,
        story.grant_bytes + BEYOND_BYTES,
    ]
    program = story.script = story.stage.program("alice", "train", training, **beside)
    granted = story.stage.event("task.granted", of=program, env="alice")
    program.line("imported", timeout_s=PROBE_TIMEOUT_S)
    _expect(program.maps("libnodemgr.so"), "the shim is not in the script's process")
    _expect(
        program.pid in granted["pids"],
        messages.PID_NOT_GRANTED(pid=program.pid, task=granted["task"]),
    )
    if story.framework is STAND_IN:
        _expect(not program.maps("libcuda.so"), "the driver was loaded before a GPU was granted")
    story.script_task = granted["task"]
    framework = story.framework
    narrate(f"{framework.script} (pid {program.pid}) imports {framework.name}: {framework.kind}")
    narrate(
        f"route: LD_PRELOAD -> sitecustomize -> import hook -> request at `import {framework.name}`"
    )
    narrate(grant_line(granted))
    program.go_on()
    program.line("allocated")


def program_gets_a_gpu(story: Story) -> None:
    if story.gpus == 1:
        narrate("(left out: this node has one GPU)")
        return
    program = story.stage.program("alice", "hold", HOLD, options=["--gpus", story.gpus - 1])
    granted = story.stage.event("task.granted", of=program, env="alice")
    _holds(program)
    _expect(
        program.maps("libnodemgr.so") and program.maps("libcuda.so"),
        "shim or driver is not in the program's process",
    )
    _expect(
        program.pid in granted["pids"],
        messages.PID_NOT_GRANTED(pid=program.pid, task=granted["task"]),
    )
    narrate(f"hold (pid {program.pid}), compiled from examples/hold.c")
    narrate("route: LD_PRELOAD -> the shim's cuInit, bound when the program was loaded -> request")
    narrate(grant_line(granted))


def another_waits(story: Story) -> None:
    story.waiter = story.stage.program("bob", "hold", HOLD)
    story.stage.event("task.waiting", of=story.waiter, env="bob")
    queue = story.stage.status()["queue"]
    _expect([row["env"] for row in queue] == ["bob"], "the request in the queue is not bob's")
    _expect(queue[0]["position"] == 1, f"bob has place {queue[0]['position']}")
    narrate(f"{queue[0]['id']} waits: {cells.placed(queue[0])}")


def too_much_is_refused(story: Story) -> None:
    assert story.script is not None
    story.script.go_on()
    refused = story.script.line("refused")
    gpu = _gpu_in_use(story, _task(story, story.script_task)["gpu_indices"][0])
    _expect(
        "OutOfMemory" in refused or "OUT_OF_MEMORY" in refused,
        f"it was refused for another reason: {refused}",
    )
    narrate(f"{refused.removeprefix('refused ')}")
    total, used, granted = (
        size(gpu[f"memory_{what}_bytes"]) for what in ("total", "used", "granted")
    )
    narrate(f"GPU {gpu['index']} has {total}, {used} in use; alice's grant on it is {granted}")


def waiting_one_is_next(story: Story) -> None:
    assert story.script is not None
    assert story.waiter is not None
    story.script.go_on()
    code = story.script.ended()
    ended = story.stage.event("task.ended", task=story.script_task)
    granted = story.stage.event("task.granted", of=story.waiter, env="bob")
    _expect(code == 0, f"alice's script ended with {code}{story.script.printed()}")
    _holds(story.waiter)
    _expect(
        story.waiter.pid in granted["pids"],
        messages.PID_NOT_GRANTED(pid=story.waiter.pid, task=granted["task"]),
    )
    _expect(not story.stage.status()["queue"], "a request is still in the queue")
    story.waiter_task, story.waiter_gpus = granted["task"], tuple(granted["gpu_indices"])
    after = milliseconds(granted["monotonic_ns"] - ended["monotonic_ns"])
    waited = milliseconds(granted["waited_ns"])
    narrate(
        f"{granted['task']} gets {gpu_names(granted)} {after} after the end of "
        f"{ended['task']}; it waited {waited} in all"
    )


def killed_one_leaves_nothing(story: Story) -> None:
    assert story.waiter is not None
    killed_ns = story.waiter.kill()
    ended = story.stage.event("task.ended", task=story.waiter_task)
    gpu = _gpu(story, story.waiter_gpus[0])
    _expect(
        gpu["tasks"] == 0 and gpu["memory_granted_bytes"] == 0,
        f"GPU {gpu['index']} is still granted",
    )
    _expect(story.waiter.ended() == -9, "the program did not end by the kill")
    after = milliseconds(ended["monotonic_ns"] - killed_ns)
    narrate(
        f"{ended['task']} ended ({ended['why']}): {gpu_names(ended)} free again {after} after "
        "the kill"
    )
    narrate(
        f"GPU {gpu['index']}: {gpu['tasks']} tasks, {size(gpu['memory_granted_bytes'])} of "
        f"{size(gpu['memory_total_bytes'])} granted"
    )


STEPS: tuple[tuple[Notice, Callable[[Story], None]], ...] = (
    (Notice("alice and bob may use so much"), quotas),
    (Notice("alice runs a Python script, which enters through the import hook"), script_gets_a_gpu),
    (Notice("alice runs a C program too, which enters through the shim"), program_gets_a_gpu),
    (Notice("bob runs the same program and waits"), another_waits),
    (Notice("alice's script tries a batch beyond the quota"), too_much_is_refused),
    (Notice("alice's script ends, and bob's program gets the GPU"), waiting_one_is_next),
    (Notice("bob's program is killed with -9"), killed_one_leaves_nothing),
)
"""The headlines and the steps, in their order."""


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotSeen(otherwise)


def _holds(program: Program) -> None:
    """hold's own word that it has its memory. Raises NotSeen."""
    said = json.loads(program.line("{"))
    _expect(said["error"] is None, f"{program.name} got {said['error']}")


def _gpu(story: Story, index: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        gpu for gpu in story.stage.status()["gpus"] if gpu["index"] == index
    )
    return found


def _gpu_in_use(story: Story, index: int) -> Mapping[str, Any]:
    """The GPU's row once the manager has seen the script's memory in the driver.

    The manager reads the driver once a second.
    """
    deadline = time.monotonic() + CHECK_S
    while (gpu := _gpu(story, index))["memory_used_bytes"] < GIB:
        if time.monotonic() > deadline:
            used = size(gpu["memory_used_bytes"])
            raise NotSeen(
                f"`status` shows {used} in use on GPU {index}, where the script holds {size(GIB)}"
            )
        time.sleep(0.05)
    return gpu


def _task(story: Story, task_id: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next(
        (task for task in story.stage.status()["tasks"] if task["id"] == task_id), None
    )
    if found is None:
        raise NotSeen(f"{task_id} is not among the tasks of `status`")
    return found


# -- the node


def real_gpus() -> int:
    """How many NVIDIA GPUs this machine's driver shows."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    return count


def choose_node(simulate: str | None) -> tuple[str | None, str]:
    """(node to simulate or None, its description)."""
    if simulate is not None:
        return simulate, f"a simulated node, {simulate}"
    count = real_gpus()
    if not count:
        return SIMULATED_NODE, f"no NVIDIA GPU here, so a simulated node: {SIMULATED_NODE}"
    from nodemgr.cli.admins.checks import manager_holds

    if manager_holds(paths.SYSTEM_RUN_DIR):
        return (
            SIMULATED_NODE,
            f"another manager has this machine's GPUs, so a simulated node: {SIMULATED_NODE}",
        )
    return None, f"this machine's own GPUs, {count}"


def choose_framework(simulated: bool) -> Framework:
    """A real one on a real node; on a simulated one there is no CUDA runtime to bring it up."""
    for framework, probe in () if simulated else REAL:
        if importlib.util.find_spec(framework.name) is None:
            continue
        answer = subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
        if answer.returncode == 0:
            return framework
    return STAND_IN


@click.command(
    cls=HelpedCommand, short_help="Show on this machine how programs get GPUs, in a few seconds."
)
@click.option(
    "--simulate",
    metavar="NODE",
    help="Simulate this node (e.g. 2x16GiB) even where there are GPUs.",
)
def command(simulate: str | None) -> None:
    """Show on this machine how programs get GPUs, wait for them, and give them back.

    The programs know nothing of nodemgr, and are held to their quota. A private manager runs for
    the demo: with this machine's GPUs if it has any, else on a simulated node.
    """
    if simulate is not None:
        _check_node(simulate)
    node, described = choose_node(simulate)
    with Stage(node, REAL_TIMEOUT_S if node is None else STEP_TIMEOUT_S) as stage:
        try:
            stage.start_manager()
        except NotSeen as fault:
            raise Fault(
                f"demo: the manager did not start: {fault}", "mend that, or give --simulate 2x16GiB"
            ) from None
        with stage.events():
            _play(stage, node, described)


def _check_node(node: str) -> None:
    from nodemgr.edge.setup.settings import SettingsError, parse_simulated

    try:
        parse_simulated(node)
    except SettingsError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--simulate") from None


def _play(stage: Stage, node: str | None, described: str) -> None:
    gpus = stage.status()["gpus"]
    smallest_bytes = min(gpu["memory_total_bytes"] for gpu in gpus)
    grant_bytes = int(smallest_bytes * GRANT_SHARE) // GIB * GIB
    if grant_bytes < 2 * GIB:
        raise Fault(
            "demo: GPUs of at least 4GiB are needed",
            "nodemgr demo --simulate 2x16GiB",
            code=Exit.USAGE,
        )
    story = Story(stage, choose_framework(node is not None), len(gpus), grant_bytes)
    click.echo(notice(f"nodemgr demo: {described}; manager: pid {stage.call('ping')['pid']}"))
    for number, (row, step) in enumerate(STEPS, start=1):
        headline = row()
        click.echo(notice(f"{number} {headline}"))
        try:
            step(story)
        except (NotSeen, Fault) as fault:
            raise Fault(
                f"demo: step {number} ({headline}) did not happen: {fault}",
                "please report it with this line, or run it on a quieter machine",
            ) from None
    click.echo("All of it happened.")
