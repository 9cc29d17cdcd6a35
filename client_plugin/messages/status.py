"""The warnings below the tables of `nodemgr status`, `top`, `queue` and `wait`."""

from __future__ import annotations

from .form import COMMAND_LINE, DRIVER, JOB, MANAGER, NODE, QUEUE, QUOTA, Message, Notice

CROWDED = Notice(QUOTA, "warning: {crowd}")
NO_JOB_STARTS = Message(
    NODE, "warning: {error}", "(nodemgr doctor says what to do; the jobs keep their places)"
)
NOTHING_IS_STORED = Message(
    MANAGER,
    "warning: nothing new is granted or started, since the manager cannot store it: {error}",
    "nodemgr doctor says what to do",
)
GPU_IN_QUESTION = Notice(DRIVER, "warning: {warning}")
MORE_GPUS_IN_QUESTION = Notice(
    DRIVER, "warning: {more} more GPUs are drained or lost (the table has their states)"
)
TASK_IS_PAUSED = Notice(
    JOB,
    "{task} is paused: it used more than its share, {share} % of the GPU, while another task"
    " waited; it goes on when the excess is paid back",
)
VIOLATIONS = Message(QUOTA, "warning: {counted} of a lease or quota", "(nodemgr status)")
UNLEASED_MEMORY = Message(QUOTA, "warning: {size} is in use without a lease", "(nodemgr status)")

# -- in place of a table without a row --

NO_QUOTA_YET = Notice(QUOTA, "no environment has a quota yet (nodemgr quota set ENV --gpus N)")
NO_FORECAST_YET = Notice(NODE, "no job with a forecast has ended in this time")
ONE_TABLE = Message(
    COMMAND_LINE, "--samples and --forecast are two tables", "ask for one at a time"
)
OF_ALL_TASKS = Message(
    COMMAND_LINE, "{table} is a table of all tasks of the node", "leave {option} out"
)
NOTHING_KNOWN_OF_ENV = Notice(QUOTA, "nothing is known of {env}")
PLACEMENT_NOW = Notice(NODE, "order of free GPUs: {meaning} (placement = {setting})")
LEARNED_PLACEMENT_FAILS = Notice(NODE, "learned placement: {fault}")
NO_GPU = Notice(NODE, "there is no GPU")
NO_TASK_USES_GPU = Notice(NODE, "no task uses a GPU")
NOTHING_WAITS = Notice(QUEUE, "nothing waits")
MORE_WAIT = Notice(QUEUE, "and {more} more: nodemgr queue")
