"""The messages of `%gpu` in a notebook."""

from __future__ import annotations

from .form import Message, Notice

NO_SUCH_MAGIC = Message("no such command {word!r}", "%gpu has {known}")
KERNEL_IN_NO_ENV = Message(
    "this kernel is in no environment of nodemgr",
    "start it with `nodemgr run`, or choose a kernel of `nodemgr kernel install`",
)
STATUS_ALONE = Message("status takes no argument", "write %gpu status")
RELEASE_ALONE = Message(
    "release takes no argument: it gives all GPUs of this kernel back",
    "write %gpu release",
)
RELEASE_NOT_HEARD = Message(
    "{task} is released, and this process has not heard so within {seconds:.0f} s",
    "restart the kernel to be sure",
)
OTHER_NUMBER_HELD = Message(
    "this kernel holds {gpus}",
    "%gpu release gives them back before it asks for another number",
)
KEEP_NEEDS_TIME = Message("{words!r} is no time to keep", "write %gpu keep 2h")
NO_TASK_TO_KEEP = Message(
    "this kernel holds no GPU", "keep it after its first use, or write %gpu acquire"
)
NO_NUMBER_OF_GPUS = Message("{words!r} is no number of GPUs", "write %gpu acquire 2")
ANSWER_OF_ANOTHER_VERSION = Message(
    "the manager's answer is no object",
    "use a client of the manager's version (restart the container or the server)",
)
RELEASED_KERNEL = Notice(
    "{task} is released. Memory that this kernel still uses stays in use until it restarts; %gpu"
    " acquire asks for GPUs again",
)
OTHER_GPUS = Message(
    "these are other GPUs than before",
    "CUDA, once used, sees them after a restart of the kernel",
)
KERNEL_IS_IDLE = Notice("{text}: this kernel holds none; the first use of CUDA asks for them")
KERNEL_WITHOUT_GPU = Notice("{text}: this kernel holds none")
KERNEL_ON_CPU = Notice("{text}: this kernel goes on without a GPU")
KERNEL_KEEPS = Notice("{task} keeps its GPU memory for {duration}, also while it is idle")
GPUS_HELD = Notice("{count} GPUs are held")
