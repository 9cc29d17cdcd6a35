"""Messages of `nodemgr demo`: its headlines, what each step found, and why a step is missed.

A part stands in the line about the step that did not happen.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    DRIVER,
    MANAGER,
    NODE,
    PROGRAM,
    QUOTA,
    Message,
    Notice,
    Part,
)

# -- the node --

DEMO_BEGINS = Notice(NODE, "nodemgr demo: {node}; manager: pid {pid}")
NODE_AS_ASKED = Part(NODE, "a simulated node, {node}")
DEMO_WITHOUT_GPU = Part(NODE, "no NVIDIA GPU here, so a simulated node: {node}")
NODE_OF_ANOTHER = Part(NODE, "another manager has this machine's GPUs, so a simulated node: {node}")
NODE_WITH_GPUS = Part(NODE, "this machine's own GPUs, {count}")
DEMO_DONE = Notice(NODE, "all of it happened")
DEMO_WITHOUT_MANAGER = Message(
    NODE, "demo: the manager did not start: {fault}", "mend that, or give --simulate 2x16GiB"
)
DEMO_SMALL_GPUS = Message(
    NODE,
    "demo: GPUs of at least 4GiB are needed",
    "nodemgr demo --simulate 2x16GiB",
    code="usage",
)
DEMO_STEP = Notice(NODE, "{number} {headline}")
DEMO_STEP_MISSED = Message(
    NODE,
    "demo: step {number} ({headline}) did not happen: {fault}",
    "please report it with this line, or run it on a quieter machine",
)

# -- the headlines --

QUOTAS_OF_TWO = Notice(QUOTA, "alice and bob may use so much")
SCRIPT_RUNS = Notice(PROGRAM, "alice runs a Python script, which enters through the import hook")
PROGRAM_RUNS = Notice(PROGRAM, "alice runs a C program too, which enters through the shim")
ANOTHER_WAITS = Notice(PROGRAM, "bob runs the same program and waits")
BATCH_BEYOND_QUOTA = Notice(QUOTA, "alice's script tries a batch beyond the quota")
NEXT_IS_SERVED = Notice(PROGRAM, "alice's script ends, and bob's program gets the GPU")
PROGRAM_KILLED = Notice(PROGRAM, "bob's program is killed with -9")

# -- what a step found --

QUOTA_IS = Notice(QUOTA, "{env}: {gpus} with {memory} in all; asks at {acquire}")
SCRIPT_IMPORTS = Notice(PROGRAM, "{script} (pid {pid}) imports {framework}: {kind}")
FRAMEWORK_STAND_IN = Part(
    PROGRAM,
    "not the real one but a small stand-in, examples/standin: ctypes on the CUDA driver",
)
FRAMEWORK_TORCH = Part(PROGRAM, "the real PyTorch")
FRAMEWORK_CUPY = Part(PROGRAM, "the real CuPy")
ROUTE_OF_SCRIPT = Notice(
    PROGRAM,
    "route: LD_PRELOAD -> sitecustomize -> import hook -> request at `import {framework}`",
)
ROUTE_OF_PROGRAM = Notice(
    PROGRAM,
    "route: LD_PRELOAD -> the shim's cuInit, bound when the program was loaded -> request",
)
STEP_LEFT_OUT = Notice(NODE, "(left out: this node has one GPU)")
PROGRAM_IS = Notice(PROGRAM, "hold (pid {pid}), compiled from examples/hold.c")
GRANTED_OF_EACH = Notice(QUOTA, "{task}: {gpus}, {memory} each, granted {when}")
GRANTED_OF_ONE = Notice(QUOTA, "{task}: {gpus}, {memory} of its memory, granted {when}")
GRANTED_AT_ONCE = Part(QUOTA, "at once")
DEMO_GRANTED_AFTER = Part(QUOTA, "after {waited} in the queue")
DEMO_WAITS = Notice(QUOTA, "{request} waits: {reason}")
REFUSED_IS = Notice(QUOTA, "{refused}")
GRANT_OF_GPU = Notice(
    QUOTA, "GPU {index} has {total}, {used} in use; alice's grant on it is {granted}"
)
NEXT_GOT = Notice(
    QUOTA, "{task} gets {gpus} {after} after the end of {ended}; it waited {waited} in all"
)
FREE_AGAIN = Notice(PROGRAM, "{task} ended ({why}): {gpus} free again {after} after the kill")
GPU_IS_FREE = Notice(DRIVER, "GPU {index}: {tasks} tasks, {granted} of {total} granted")

# -- why a step is missed --

NO_SHIM_IN_SCRIPT = Part(PROGRAM, "the shim is not in the script's process")
NO_SHIM_OR_DRIVER = Part(PROGRAM, "shim or driver is not in the program's process")
PID_NOT_GRANTED = Part(MANAGER, "pid {pid} is not in the grant of {task}")
DRIVER_TOO_EARLY = Part(PROGRAM, "the driver was loaded before a GPU was granted")
DEMO_QUEUE_OF_OTHERS = Part(MANAGER, "the request in the queue is not bob's")
WRONG_PLACE = Part(MANAGER, "bob has place {position}")
OTHER_REFUSAL = Part(DRIVER, "it was refused for another reason: {refused}")
SCRIPT_FAILED = Part(PROGRAM, "alice's script ended with {code}{printed}")
REQUEST_LEFT = Part(MANAGER, "a request is still in the queue")
STILL_GRANTED = Part(MANAGER, "GPU {index} is still granted")
NOT_BY_KILL = Part(PROGRAM, "the program did not end by the kill")
HOLD_GOT = Part(DRIVER, "{name} got {error}")
USE_NOT_SHOWN = Part(
    MANAGER,
    "`status` shows {used} in use on GPU {index}, where the script holds {held}",
)
TASK_NOT_SHOWN = Part(MANAGER, "{task} is not among the tasks of `status`")
LINE_NOT_PRINTED = Part(PROGRAM, "{name} did not print {line!r} within {limit} s{printed}")
ENDED_WITHOUT_LINE = Part(PROGRAM, "{name} ended without printing {line!r}{printed}")
PROGRAM_ENDED_EARLY = Part(PROGRAM, "{name} ended before it was told to go on{printed}")
NOT_ENDED = Part(PROGRAM, "{name} did not end within {limit} s{printed}")
ITS_LAST_LINES = Part(PROGRAM, "; it printed: {lines}")
DEMO_MANAGER_ENDED = Part(MANAGER, "the manager ended with {code}: {lines}")
DEMO_MANAGER_SLOW = Part(MANAGER, "the manager was not ready within {limit} s: {lines}")
ENDED_WITHOUT_EVENT = Part(
    MANAGER, "{name} ended with {code} and brought no event {event}{printed}"
)
NO_EVENT = Part(MANAGER, "no event {event} within {limit} s{printed}")
