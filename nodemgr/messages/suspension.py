"""Messages about suspended tasks: refusals of an order, and why a suspension failed."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

# -- orders --

NO_SUCH_TASK = Message(
    "there is no task {task!r}{meant}", "`nodemgr status` lists them", code="not_found"
)
ENV_HAS_NO_SUCH_TASK = Message(
    "{env} has no task {task!r}{meant}", "`nodemgr status` lists them", code="not_found"
)
ALREADY_SUSPENDED = Message(
    "{task} is suspended already", "`nodemgr resume {task}` brings it back", code="refused"
)
BEING_SUSPENDED = Message("{task} is being suspended", "wait, or see `nodemgr status`", code="busy")
BEING_RESUMED = Message("{task} is being resumed", "wait for its end", code="busy")
NOT_SUSPENDED = Message("{task} is not suspended", "it goes on by itself", code="refused")
TASK_IS_STALLED = Message(
    "{task} is stalled, and a stopped process cannot be suspended",
    "`nodemgr release {task}` takes its GPUs back",
    code="refused",
)
TASK_IS_ELSEWHERE = Message(
    "{task} has processes on other machines or none yet, and only those of this node can be"
    " suspended",
    "`nodemgr release {task}` takes its GPUs back",
    code="refused",
)
RELEASE_OF_SUSPENDED = Message(
    "{task} is suspended, and its processes cannot go on without their GPU memory",
    "bring it back first (`nodemgr resume {task}`), or end its processes (kill {pids})",
    code="refused",
)
SUSPEND_FAILED = Message(
    "{task} is not suspended and goes on: {reason}", "see `nodemgr events`", code="refused"
)
RESUME_NOT_DONE = Message(
    "the GPU memory of {task} did not come back: {reason}",
    "try once more, else end its processes",
    code="refused",
)
KEEP_TOO_LONG = Message(
    "a user of {env} may keep an idle task for {limit}, not for {asked}",
    "name a shorter time, or ask an administrator (quota set --max-keep)",
    code="quota",
)
ENDED_MEANWHILE = Message("{task} has ended", "`nodemgr events` says why", code="not_found")

# -- why a suspension failed --

SHARES_MEMORY = Part(
    "the driver cannot suspend process {pid}, which shares GPU memory with another process or uses"
    " managed memory",
)
PROCESS_FAILED = Part(
    "the driver failed while it moved the GPU memory of process {pid}, which cannot go on: end it"
    " (kill {pid})",
)
WORK_GOES_ON = Part("the GPU work of process {pid} did not end within {seconds} s")
NO_CUDA_YET = Part("process {pid} has not used CUDA yet")
CALL_FAILED = Part("{call} of process {pid}: {error}")
NODE_MEMORY_SHORT = Part("it needs {need} of host memory, and the node has {free} to spare")
CONTAINER_MEMORY_SHORT = Part(
    "it needs {need} of host memory, and the limit of the container of process {pid} leaves {free}",
)
ROOM_IS_USED = Part(
    "other processes use its room on GPU {gpus}, by the driver's figures, and a restore that fails"
    " is final; it waits in the queue",
)
HOST_MEMORY_GONE = Part(
    "the host memory for the GPU memory of process {pid} was gone when it was needed"
)
OLD_DRIVER = Part("the driver cannot suspend processes, which needs version 570 or newer")
MPS_RUNS = Part(
    "the control daemon of MPS runs, and the driver cannot suspend processes that use it"
)
DRIVER_UNUSABLE = Part("the driver could not be used: {error}")
PROCESS_ENDED_AGAIN = Part("the process that suspends tasks ended {times} times in it")
