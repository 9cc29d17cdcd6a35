"""The messages of the leader of an elastic task, about its GPUs and its workers."""

from __future__ import annotations

from .form import Message, Notice, Part

SIZE = Notice("elastic: the training runs on {size} GPU{s}")
GPU_RECALLED = Notice("elastic: GPU {gpu} is asked back: {reason}")
ANOTHER_REQUEST = Part("another request waits for it")
RECALL_WITHDRAWN = Notice("elastic: GPU {gpu} stays with this task")
CODE = Part("exit code {code}")
SIGNAL = Part("signal {name}")
ENDED = Message("elastic: worker {worker} ended with {how}", "its own lines above have the reason")
RESTARTED = Message(
    "elastic: all workers start again from the checkpoint, since one ended with {how}",
    "the lines of the worker have the reason",
)
BEGUN_ANEW = Message(
    "elastic: all workers start anew, without a checkpoint, since one ended with {how}",
    "the lines of the worker have the reason",
)
GAVE_UP = Message(
    "elastic: the script is not started again after {size} restarts in a row",
    "the lines of the workers have the reason",
)
KEEPS_SIZE = Message(
    "elastic: the script keeps its {size} GPU{s}, since it has no checkpoint to start again from",
    "name its checkpoint by --checkpoint, or use nodemgr_client.elastic in it",
)
NOT_YET = Message(
    "elastic: the script keeps its {size} GPU{s} until its first checkpoint",
    "name the path that the script writes by --checkpoint",
)
TAKEN = Message(
    "elastic: worker {worker} was killed, since GPU {gpu} was asked back and there is no new "
    "checkpoint",
    "save checkpoints more often, and name them by --checkpoint",
)
EARLY = Notice(
    "elastic: worker {worker} was ended, since GPU {gpu} was asked back before elastic(...) was "
    "reached: it had nothing to lose, and the others go on",
)
FEWER = Message(
    "elastic: all workers start anew on the GPUs that are left, since one was asked back and the "
    "script does not reach elastic(...)",
    "use nodemgr_client.elastic in it, or name its checkpoint by --checkpoint",
)
SCRIPT_CHECKPOINT_UNREADABLE = Message(
    "elastic: the checkpoint {path} cannot be read ({error}), so the script keeps its GPUs",
    "make it readable, or name another path by --checkpoint",
)
TORCHRUN_REPLACED = Notice(
    "elastic: starts the script itself in place of torchrun; not used: {unused}"
)
NO_OPTION = Part("no option")
BAD_TORCHRUN = Message(
    "elastic: torchrun does not take these words ({error})",
    "name the script itself, as in `python train.py`",
)
TOO_LATE = Message(
    "elastic: worker {worker} was killed, since it did not leave GPU {gpu} in time",
    "make steps shorter than the time of a recall (setting recall_ms)",
)
GIVEN_BACK = Message(
    "elastic: GPU {gpu} is given back, since {size:d} workers in a row ended before they trained",
    "read their own lines above",
)
STOPPED = Message(
    "elastic: worker {worker} was stopped by a signal, and the training waits for it",
    "continue it: kill -CONT {pid}",
)
STUCK = Message(
    "elastic: worker {worker} was killed, since it did not join the others",
    "its lines have the reason",
)
BROKEN = Message(
    "elastic: the collectives of the workers break again and again",
    "the lines of the workers have the reason",
)
SAME_STEP = Message(
    "elastic: {size} workers in a row have failed at the same step",
    "the lines of the workers have the reason",
)
NO_GPU_LEFT = Message("elastic: no GPU is left to start the script on", "start the task again")
GPUS_LOST = Message("elastic: the task has lost its GPUs: {reason}", "start the task again")
WORKER_NOT_STARTED = Message(
    "elastic: {program} could not be started ({error})", "name another command"
)
NO_SOCKET_DIRECTORY = Message(
    "elastic: no directory for the sockets of the workers ({error})",
    "free space in /tmp, or set TMPDIR to a short path",
)
