"""The messages of the preloaded library, of which csrc/build.py makes csrc/client/messages.h.

A field is %s in C, `{name:d}` is %d, and `{name:.400}` is %.400s; the C call has its arguments in
the order of the fields.
"""

from __future__ import annotations

from .form import Message, Notice, Part

# -- memory --

MEMORY_OVER_QUOTA = Message(
    "out of GPU memory by quota, not by the GPU: {asked} asked on {gpu}; environment '{env}' may"
    " use {limit} there, this process holds {own}, its other processes {others}{more}",
    "`nodemgr status` shows the tasks",
)
MEMORY_OVER_GPU = Message(
    "out of GPU memory: {asked} asked on {gpu}; environment '{env}' may use the whole GPU, {limit};"
    " this process holds {own}, its other processes {others}{more}",
    "`nodemgr status` shows the tasks",
)
MEMORY_OVER_OWN = Message(
    "out of GPU memory by this task's own --memory: {asked} asked on {gpu}; the task may use"
    " {limit} there, this process holds {own}, its other processes {others}",
    "name more, or a range such as --memory 8GiB-24GiB",
)
MORE_FOR_NAMED_TASKS = Part(", and {bytes} are kept for tasks that named their memory")
DRIVER_SHOWS_MORE = Part(
    ", and the driver shows {bytes} beyond that (contexts, modules, programs without the shim)",
)
GPU_OF_OTHERS = Message(
    "GPU {index:d} is not among the GPUs of this task: environment '{env}' has no memory on it",
    "use those in CUDA_VISIBLE_DEVICES, which the grant has set",
)
REFUSED_WHILE_STALLED = Message(
    "GPU memory is refused for now: this process sent no beat within the timeout, and the manager"
    " does not answer",
    "try again, or see `nodemgr doctor`",
)
TOO_MANY_POOLS = Message(
    "this program has {pools:d} memory pools, and no more can be charged to the quota",
    "destroy one first (cuMemPoolDestroy)",
)

# -- the lease --

GRANTED_AFTER = Notice("{count:d} GPU{plural} granted after {elapsed}")
LEASE_LOST = Notice("{reason:.800}; what this process holds stays, new allocations are refused")
TASK_LEASE_OVER = Part("this task's lease is over: run it again to ask anew")
ON_THE_CPU = Notice("{reason:.800}; the program continues on the CPU (no_gpu=cpu)")
CANNOT_TAKE = Message(
    "GPUs are granted, but this process cannot take them: {fault}",
    "start the program again with room for it",
)
CANNOT_TAKE_YET = Notice(
    "GPUs are granted, but this process cannot take them: {fault}; trying again"
)
NO_SOCKET = Message(
    "this process cannot ask for GPUs: it may open no socket ({why})",
    "allow it the system call (seccomp, a sandbox), or use CUDA before it is forbidden",
)
NO_DESCRIPTORS_FOR_DRIVER = Message(
    "CUDA did not start (error {code:d}), and this process has no free file descriptors: its GPUs"
    " are given back",
    "raise the limit (ulimit -n), or close files before",
)
UNREADABLE_GRANT = Part("it sent a grant that cannot be read")
NO_ROOM_FOR_GRANT = Part("no memory for the grant")
NO_DESCRIPTORS = Part("no free file descriptors for the memory ledger (ulimit -n)")
LEDGER_NOT_MAPPED = Part("the memory ledger cannot be mapped")
NO_BEATING_THREAD = Message(
    "no thread for the beats ({why}): the manager may report this task as stalled",
    "raise the limit on processes (ulimit -u)",
)

# -- the launch gate --

GATE_CLOSED = Notice(
    "this task's GPU launches wait: it is best effort, and other tasks have all compute of a GPU"
    " that it holds; they go on when compute is free again",
)
GATE_PAUSED = Notice(
    "this task's GPU launches wait: it used more than its share, {share:d} % of the GPU, while"
    " another task waited; they go on when the excess is paid back",
)
GATE_STALLED = Notice(
    "this task's GPU launches wait: the manager counts it as stalled, because its processes sent"
    " no beat within the timeout; they go on at the next beat",
)
GATE_SUSPENDED = Notice(
    "this task is suspended: its launch waits until its GPU memory is back on the GPU"
)
GATE_BUSY = Notice("this task's GPU launches wait for their turn on a shared GPU")

# -- variables --

GPUS_NOT_A_NUMBER = Message(
    "NODEMGR_GPUS is neither a number of GPUs nor a range and is ignored",
    "set it to a number such as 1, or to a range such as 2-4",
)
WORKER_GPU_NO_NAME = Message(
    "NODEMGR_WORKER_GPU is not the name of a GPU and is ignored",
    "the leader of an elastic task sets it for its workers: unset it elsewhere",
)
NOT_A_WHOLE_NUMBER = Message(
    "{name} is not a valid whole number and is ignored",
    "set bytes (NODEMGR_MEMORY) or seconds (NODEMGR_WAIT, NODEMGR_DEADLINE), or unset it",
)
NOT_A_CLASS = Message(
    "NODEMGR_CLASS is no class of tasks and is ignored",
    "set latency-sensitive, normal or best-effort, or unset it",
)
NOT_A_SHARE = Message(
    "{name} is no share of a GPU and is ignored",
    "set a percentage from 1% to 100%, such as 30%, or unset it",
)

# -- a manager that does not answer --

MANAGER_NO_ANSWER = Message(
    "no answer from the manager at {address:.400} ({fault}); {then} (no_manager={rule})",
    "`nodemgr doctor` checks it",
)
THEN_WAITS = Part("waiting for it")
THEN_ON_CPU = Part("going on without a GPU")
THEN_NO_GPU = Part("no GPU")
MANAGER_NO_ANSWER_WHILE_HELD = Notice(
    "no answer from the manager at {address:.400} ({fault}); the task goes on, and is announced"
    " again when it is back",
)
WAITED_FOR_MANAGER = Message(
    "waited {seconds:d} s for the manager at {address:.400}, which does not answer",
    "see `nodemgr doctor`, or allow a longer wait (NODEMGR_WAIT)",
)
NO_ANSWER = Message("no answer from the manager", "see `nodemgr doctor`")
ANSWER_TOO_LONG = Message(
    "the answer is longer than the buffer for it",
    "ask for less, or on the node with `nodemgr status`",
)
SILENCE = Part("silence")
MANY_CONNECTIONS = Part("the manager has too many new connections")
LONG_PATH = Part("the path is too long")
NO_HOST_AND_PORT = Part("no numeric HOST:PORT")
NO_KEY = Part("the key file is missing, not readable, or not 64 hex digits")
NO_ENV_NAMED = Part("client.conf names no env")
NO_ADDRESS_NAMED = Part("client.conf there names no address")
STRANGE_ADDRESS = Part(
    "client.conf there names an address that begins with neither unix: nor udp: as it must"
)

WRONG_EVENT = Message(
    "internal error: event {event:d} in state {state:d} of the client was ignored",
    "please report it",
)
