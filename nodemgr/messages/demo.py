"""Messages of `nodemgr demo`: its headlines, what each step found, and why a step is missed.

A part stands in the line about the step that did not happen.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Notice,
    Part,
)

# -- the node --

DEMO_BEGINS = Notice("nodemgr demo: {node}; manager: pid {pid}")
NODE_AS_ASKED = Part("a simulated node, {node}")
DEMO_WITHOUT_GPU = Part("no NVIDIA GPU here, so a simulated node: {node}")
NODE_OF_ANOTHER = Part("another manager has this machine's GPUs, so a simulated node: {node}")
NODE_WITH_GPUS = Part("this machine's own GPUs, {count}")
DEMO_DONE = Notice("all of it happened")
DEMO_WITHOUT_MANAGER = Message(
    "demo: the manager did not start: {fault}", "mend that, or give --simulate 2x16GiB"
)
DEMO_SMALL_GPUS = Message(
    "demo: GPUs of at least 4GiB are needed",
    "nodemgr demo --simulate 2x16GiB",
    code="usage",
)
DEMO_STEP = Notice("{number} {headline}")
DEMO_STEP_MISSED = Message(
    "demo: step {number} ({headline}) did not happen: {fault}",
    "please report it with this line, or run it on a quieter machine",
)

# -- the headlines --

QUOTAS_OF_TWO = Notice("alice and bob may use so much")
SCRIPT_RUNS = Notice("alice runs a Python script, which enters through the import hook")
PROGRAM_RUNS = Notice("alice runs a C program too, which enters through the shim")
ANOTHER_WAITS = Notice("bob runs the same program and waits")
BATCH_BEYOND_QUOTA = Notice("alice's script tries a batch beyond the quota")
NEXT_IS_SERVED = Notice("alice's script ends, and bob's program gets the GPU")
PROGRAM_KILLED = Notice("bob's program is killed with -9")

# -- what a step found --

QUOTA_IS = Notice("{env}: {gpus} with {memory} in all; asks at {acquire}")
SCRIPT_IMPORTS = Notice("{script} (pid {pid}) imports {framework}: {kind}")
FRAMEWORK_STAND_IN = Part(
    "not the real one but a small stand-in, examples/standin: ctypes on the CUDA driver",
)
FRAMEWORK_TORCH = Part("the real PyTorch")
FRAMEWORK_CUPY = Part("the real CuPy")
ROUTE_OF_SCRIPT = Notice(
    "route: LD_PRELOAD -> sitecustomize -> import hook -> request at `import {framework}`",
)
ROUTE_OF_PROGRAM = Notice(
    "route: LD_PRELOAD -> the shim's cuInit, bound when the program was loaded -> request",
)
STEP_LEFT_OUT = Notice("(left out: this node has one GPU)")
PROGRAM_IS = Notice("hold (pid {pid}), compiled from examples/hold.c")
GRANTED_OF_EACH = Notice("{task}: {gpus}, {memory} each, granted {when}")
GRANTED_OF_ONE = Notice("{task}: {gpus}, {memory} of its memory, granted {when}")
GRANTED_AT_ONCE = Part("at once")
DEMO_GRANTED_AFTER = Part("after {waited} in the queue")
DEMO_WAITS = Notice("{request} waits: {reason}")
REFUSED_IS = Notice("{refused}")
GRANT_OF_GPU = Notice("GPU {index} has {total}, {used} in use; alice's grant on it is {granted}")
NEXT_GOT = Notice("{task} gets {gpus} {after} after the end of {ended}; it waited {waited} in all")
FREE_AGAIN = Notice("{task} ended ({why}): {gpus} free again {after} after the kill")
GPU_IS_FREE = Notice("GPU {index}: {tasks} tasks, {granted} of {total} granted")

# -- why a step is missed --

NO_SHIM_IN_SCRIPT = Part("the shim is not in the script's process")
NO_SHIM_OR_DRIVER = Part("shim or driver is not in the program's process")
PID_NOT_GRANTED = Part("pid {pid} is not in the grant of {task}")
DRIVER_TOO_EARLY = Part("the driver was loaded before a GPU was granted")
DEMO_QUEUE_OF_OTHERS = Part("the request in the queue is not bob's")
WRONG_PLACE = Part("bob has place {position}")
OTHER_REFUSAL = Part("it was refused for another reason: {refused}")
SCRIPT_FAILED = Part("alice's script ended with {code}{printed}")
REQUEST_LEFT = Part("a request is still in the queue")
STILL_GRANTED = Part("GPU {index} is still granted")
NOT_BY_KILL = Part("the program did not end by the kill")
HOLD_GOT = Part("{name} got {error}")
USE_NOT_SHOWN = Part(
    "`status` shows {used} in use on GPU {index}, where the script holds {held}",
)
TASK_NOT_SHOWN = Part("{task} is not among the tasks of `status`")
LINE_NOT_PRINTED = Part("{name} did not print {line!r} within {limit} s{printed}")
ENDED_WITHOUT_LINE = Part("{name} ended without printing {line!r}{printed}")
PROGRAM_ENDED_EARLY = Part("{name} ended before it was told to go on{printed}")
NOT_ENDED = Part("{name} did not end within {limit} s{printed}")
ITS_LAST_LINES = Part("; it printed: {lines}")
DEMO_MANAGER_ENDED = Part("the manager ended with {code}: {lines}")
DEMO_MANAGER_SLOW = Part("the manager was not ready within {limit} s: {lines}")
ENDED_WITHOUT_EVENT = Part("{name} ended with {code} and brought no event {event}{printed}")
NO_EVENT = Part("no event {event} within {limit} s{printed}")
