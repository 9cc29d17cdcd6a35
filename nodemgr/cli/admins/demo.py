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
from client_plugin.messages.form import MessageLine, Notice, sentence
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
    kind: MessageLine


STAND_IN = Framework("cupy", "train.py", messages.FRAMEWORK_STAND_IN())
REAL = (
    (
        Framework("torch", "train_torch.py", messages.FRAMEWORK_TORCH()),
        "import torch; assert torch.version.cuda and torch.cuda.device_count()",
    ),
    (
        Framework("cupy", "train.py", messages.FRAMEWORK_CUPY()),
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


def narrate(line: MessageLine) -> None:
    click.echo(f"    {line}")


def size(size_bytes: int) -> str:
    return units.format_size(size_bytes)


def counted(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def grant_line(granted: PublishedEvent) -> MessageLine:
    row = messages.GRANTED_OF_EACH if len(granted["gpu_indices"]) > 1 else messages.GRANTED_OF_ONE
    waited_ns = granted["waited_ns"]
    when = (
        messages.DEMO_GRANTED_AFTER(waited=milliseconds(waited_ns))
        if waited_ns
        else messages.GRANTED_AT_ONCE()
    )
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
            messages.QUOTA_IS(
                env=row["name"],
                gpus=counted(quota["gpus"]),
                memory=size(quota["memory_bytes"]),
                acquire=quota["acquire"],
            )
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
    _expect(program.maps("libnodemgr.so"), messages.NO_SHIM_IN_SCRIPT())
    _expect(
        program.pid in granted["pids"],
        messages.PID_NOT_GRANTED(pid=program.pid, task=granted["task"]),
    )
    if story.framework is STAND_IN:
        _expect(not program.maps("libcuda.so"), messages.DRIVER_TOO_EARLY())
    story.script_task = granted["task"]
    framework = story.framework
    narrate(
        messages.SCRIPT_IMPORTS(
            script=framework.script,
            pid=program.pid,
            framework=framework.name,
            kind=framework.kind,
        )
    )
    narrate(messages.ROUTE_OF_SCRIPT(framework=framework.name))
    narrate(grant_line(granted))
    program.go_on()
    program.line("allocated")


def program_gets_a_gpu(story: Story) -> None:
    if story.gpus == 1:
        narrate(messages.STEP_LEFT_OUT())
        return
    program = story.stage.program("alice", "hold", HOLD, options=["--gpus", story.gpus - 1])
    granted = story.stage.event("task.granted", of=program, env="alice")
    _holds(program)
    _expect(
        program.maps("libnodemgr.so") and program.maps("libcuda.so"),
        messages.NO_SHIM_OR_DRIVER(),
    )
    _expect(
        program.pid in granted["pids"],
        messages.PID_NOT_GRANTED(pid=program.pid, task=granted["task"]),
    )
    narrate(messages.PROGRAM_IS(pid=program.pid))
    narrate(messages.ROUTE_OF_PROGRAM())
    narrate(grant_line(granted))


def another_waits(story: Story) -> None:
    story.waiter = story.stage.program("bob", "hold", HOLD)
    story.stage.event("task.waiting", of=story.waiter, env="bob")
    queue = story.stage.status()["queue"]
    _expect([row["env"] for row in queue] == ["bob"], messages.DEMO_QUEUE_OF_OTHERS())
    _expect(queue[0]["position"] == 1, messages.WRONG_PLACE(position=queue[0]["position"]))
    narrate(messages.DEMO_WAITS(request=queue[0]["id"], reason=queue[0]["reason"]))


def too_much_is_refused(story: Story) -> None:
    assert story.script is not None
    story.script.go_on()
    refused = story.script.line("refused")
    gpu = _gpu_in_use(story, _task(story, story.script_task)["gpu_indices"][0])
    _expect(
        "OutOfMemory" in refused or "OUT_OF_MEMORY" in refused,
        messages.OTHER_REFUSAL(refused=refused),
    )
    narrate(messages.REFUSED_IS(refused=refused.removeprefix("refused ")))
    total, used, granted = (
        size(gpu[f"memory_{what}_bytes"]) for what in ("total", "used", "granted")
    )
    narrate(messages.GRANT_OF_GPU(index=gpu["index"], total=total, used=used, granted=granted))


def waiting_one_is_next(story: Story) -> None:
    assert story.script is not None
    assert story.waiter is not None
    story.script.go_on()
    code = story.script.ended()
    ended = story.stage.event("task.ended", task=story.script_task)
    granted = story.stage.event("task.granted", of=story.waiter, env="bob")
    _expect(code == 0, messages.SCRIPT_FAILED(code=code, printed=story.script.printed()))
    _holds(story.waiter)
    _expect(
        story.waiter.pid in granted["pids"],
        messages.PID_NOT_GRANTED(pid=story.waiter.pid, task=granted["task"]),
    )
    _expect(not story.stage.status()["queue"], messages.REQUEST_LEFT())
    story.waiter_task, story.waiter_gpus = granted["task"], tuple(granted["gpu_indices"])
    after = milliseconds(granted["monotonic_ns"] - ended["monotonic_ns"])
    waited = milliseconds(granted["waited_ns"])
    narrate(
        messages.NEXT_GOT(
            task=granted["task"],
            gpus=gpu_names(granted),
            after=after,
            ended=ended["task"],
            waited=waited,
        )
    )


def killed_one_leaves_nothing(story: Story) -> None:
    assert story.waiter is not None
    killed_ns = story.waiter.kill()
    ended = story.stage.event("task.ended", task=story.waiter_task)
    gpu = _gpu(story, story.waiter_gpus[0])
    _expect(
        gpu["tasks"] == 0 and gpu["memory_granted_bytes"] == 0,
        messages.STILL_GRANTED(index=gpu["index"]),
    )
    _expect(story.waiter.ended() == -9, messages.NOT_BY_KILL())
    after = milliseconds(ended["monotonic_ns"] - killed_ns)
    narrate(
        messages.FREE_AGAIN(
            task=ended["task"], why=ended["why"], gpus=gpu_names(ended), after=after
        )
    )
    narrate(
        messages.GPU_IS_FREE(
            index=gpu["index"],
            tasks=gpu["tasks"],
            granted=size(gpu["memory_granted_bytes"]),
            total=size(gpu["memory_total_bytes"]),
        )
    )


STEPS: tuple[tuple[Notice, Callable[[Story], None]], ...] = (
    (messages.QUOTAS_OF_TWO, quotas),
    (messages.SCRIPT_RUNS, script_gets_a_gpu),
    (messages.PROGRAM_RUNS, program_gets_a_gpu),
    (messages.ANOTHER_WAITS, another_waits),
    (messages.BATCH_BEYOND_QUOTA, too_much_is_refused),
    (messages.NEXT_IS_SERVED, waiting_one_is_next),
    (messages.PROGRAM_KILLED, killed_one_leaves_nothing),
)
"""The headlines and the steps, in their order."""


def _expect(holds: bool, otherwise: MessageLine) -> None:
    if not holds:
        raise NotSeen(otherwise)


def _holds(program: Program) -> None:
    """hold's own word that it has its memory. Raises NotSeen."""
    said = json.loads(program.line("{"))
    _expect(said["error"] is None, messages.HOLD_GOT(name=program.name, error=said["error"]))


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
            raise NotSeen(messages.USE_NOT_SHOWN(used=used, index=index, held=size(GIB)))
        time.sleep(0.05)
    return gpu


def _task(story: Story, task_id: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next(
        (task for task in story.stage.status()["tasks"] if task["id"] == task_id), None
    )
    if found is None:
        raise NotSeen(messages.TASK_NOT_SHOWN(task=task_id))
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


def choose_node(simulate: str | None) -> tuple[str | None, MessageLine]:
    """(node to simulate or None, its description)."""
    if simulate is not None:
        return simulate, messages.NODE_AS_ASKED(node=simulate)
    count = real_gpus()
    if not count:
        return SIMULATED_NODE, messages.DEMO_WITHOUT_GPU(node=SIMULATED_NODE)
    from nodemgr.cli.admins.checks import manager_holds

    if manager_holds(paths.SYSTEM_RUN_DIR):
        return SIMULATED_NODE, messages.NODE_OF_ANOTHER(node=SIMULATED_NODE)
    return None, messages.NODE_WITH_GPUS(count=count)


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
            raise Fault(messages.DEMO_WITHOUT_MANAGER(fault=fault)) from None
        with stage.events():
            _play(stage, node, described)


def _check_node(node: str) -> None:
    from nodemgr.edge.setup.settings import SettingsError, parse_simulated

    try:
        parse_simulated(node)
    except SettingsError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--simulate") from None


def _play(stage: Stage, node: str | None, described: MessageLine) -> None:
    gpus = stage.status()["gpus"]
    smallest_bytes = min(gpu["memory_total_bytes"] for gpu in gpus)
    grant_bytes = int(smallest_bytes * GRANT_SHARE) // GIB * GIB
    if grant_bytes < 2 * GIB:
        raise Fault(messages.DEMO_SMALL_GPUS(), Exit.USAGE)
    story = Story(stage, choose_framework(node is not None), len(gpus), grant_bytes)
    click.echo(messages.DEMO_BEGINS(node=described, pid=stage.call("ping")["pid"]))
    for number, (row, step) in enumerate(STEPS, start=1):
        headline = row()
        click.echo(messages.DEMO_STEP(number=number, headline=headline))
        try:
            step(story)
        except (NotSeen, Fault) as fault:
            raise Fault(
                messages.DEMO_STEP_MISSED(number=number, headline=headline, fault=fault)
            ) from None
    click.echo(sentence(messages.DEMO_DONE()))
