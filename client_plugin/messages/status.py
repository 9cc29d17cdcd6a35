"""The warnings below the tables of `nodemgr status`, `top`, `queue` and `wait`."""

from __future__ import annotations

from .form import Message, Notice

CROWDED = Notice("warning: {crowd}")
NO_JOB_STARTS = Message(
    "warning: {error}", "(nodemgr doctor says what to do; the jobs keep their places)"
)
NOTHING_IS_STORED = Message(
    "warning: nothing new is granted or started, since the manager cannot store it: {error}",
    "nodemgr doctor says what to do",
)
GPU_IN_QUESTION = Notice("warning: {warning}")
MORE_GPUS_IN_QUESTION = Notice(
    "warning: {more} more GPUs are drained or lost (the table has their states)"
)
TASK_IS_PAUSED = Notice(
    "{task} is paused: it used more than its share, {share} % of the GPU, while another task"
    " waited; it goes on when the excess is paid back",
)
VIOLATIONS = Message("warning: {counted} of a lease or quota", "(nodemgr status)")
UNLEASED_MEMORY = Message("warning: {size} is in use without a lease", "(nodemgr status)")

# -- in place of a table without a row --

NO_QUOTA_YET = Notice("no environment has a quota yet (nodemgr quota set ENV --gpus N)")
NO_FORECAST_YET = Notice("no job with a forecast has ended in this time")
ONE_TABLE = Message("--samples and --forecast are two tables", "ask for one at a time")
OF_ALL_TASKS = Message("{table} is a table of all tasks of the node", "leave {option} out")
NOTHING_KNOWN_OF_ENV = Notice("nothing is known of {env}")
PLACEMENT_NOW = Notice("order of free GPUs: {meaning} (placement = {setting})")
LEARNED_PLACEMENT_FAILS = Notice("learned placement: {fault}")
NO_GPU = Notice("there is no GPU")
NO_TASK_USES_GPU = Notice("no task uses a GPU")
NOTHING_WAITS = Notice("nothing waits")
MORE_WAIT = Notice("and {more} more: nodemgr queue")
