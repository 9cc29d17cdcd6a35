"""The messages of the core: refusals, reasons to wait, the ends of tasks and jobs.

A reason to wait is a Part: `nodemgr queue` prints it in a column, and the waiting line ends with
it.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    CONTAINER,
    DRIVER,
    JOB,
    MANAGER,
    NODE,
    ORDER,
    PROGRAM,
    QUEUE,
    QUOTA,
    Message,
    Notice,
    Part,
)

# -- reasons to wait --

PLACE = Part(QUEUE, "place {position} in queue {queue}: {why}")
PLACE_AFTER = Part(
    QUEUE, "place {position} in queue {queue} (after {ahead} in other queues): {why}"
)
NEEDS_QUOTA_MEMORY = Part(
    QUOTA,
    "needs {need} of {env}'s memory quota per GPU, {left} left: waits for {holders}",
)
NEEDS_ROOM_ON_OWN_GPU = Part(
    QUOTA,
    "needs {need} free on a GPU that {env} holds: waits for its own tasks to free memory",
)
NEEDS_COMPUTE_ON_OWN_GPU = Part(
    NODE,
    "needs {percent} % of the compute of GPUs that {env} holds, {free} % free: waits for the tasks"
    " there",
)
NEEDS_ROOM_OF_SUSPENDED = Part(
    NODE,
    "needs {need} on {gpus}, where {env}'s suspended tasks gave their room to others",
)
NEEDS_ROOM_OF_LEFT = Part(
    QUOTA,
    "needs {need} free on {gpus}, where processes of {env} that left their tasks still have memory",
)
NEEDS_RESERVED_COMPUTE = Part(NODE, "needs {percent} % of the compute of GPUs that {env} holds")
NEEDS_COMPUTE = Part(
    NODE, "needs {gpus} with {percent} % of the compute free, at most {free} % free on any GPU"
)
NEEDS_COMPUTE_ON_MORE_GPUS = Part(
    NODE, "needs {gpus} with {percent} % of the compute free on each, and finds {fitting}"
)
NEEDS_QUOTA_GPUS = Part(
    QUOTA, "needs {gpus} of the {quota} in {env}'s quota, {left} left: waits for its own tasks"
)
NEEDS_DRAINED_GPU = Part(
    QUOTA,
    "needs {gpus}; {env}'s quota of {quota} includes {drained} (drained, no new task): waits for "
    "the tasks there, or an administrator runs `nodemgr gpu resume {index}` or raises the quota",
)
NEEDS_FREE_GPUS = Part(NODE, "needs {gpus}, {free} free")
FEWER_WOULD_START = Part(NODE, "`--gpus {gpus}` would start now")
MEMORY_WOULD_SHARE = Part(QUOTA, "`--memory SIZE` would share a GPU where SIZE is free")
NEXT_KNOWN_END = Part(NODE, "next known end {clock}: {env}/{job}, time limit")
RESUME_NEEDS_ROOM = Part(NODE, "{task} is suspended and needs {need} again on {gpus}, {free} free")
RESUME_NEEDS_COMPUTE = Part(
    NODE, "{task} is suspended and needs {percent} % of the compute of {gpus} again"
)
RESUME_NEEDS_GPU = Part(DRIVER, "{task} is suspended and waits for {gpus}, which the node has lost")
RESUME_AFTER_SUSPENSION = Part(NODE, "{task} is resumed when its suspension has ended")
RESUME_AT_ONCE = Part(NODE, "{task} is resumed at once")
BEHIND_OWN = Part(QUEUE, "needs {gpus}; {before} of its own environment comes first")
PLACE_DOWN = Part(NODE, "needs {gpus}; {why}")
ABOVE_QUOTA = Part(
    QUOTA,
    "needs {gpus}, but the quota of {env} is {quota} now: waits until an admin raises it",
)
ABOVE_MEMORY = Part(
    QUOTA,
    "needs {need} per GPU, but {env} may have at most {limit} now: waits until an admin raises"
    " its quota",
)
SHARE_ABOVE_QUOTA = Part(QUOTA, "waits until an admin raises its quota: {refusal}")
ABOVE_NODE = Part(
    NODE,
    "needs {gpus}, but the node has {fitting} in service for it ({others}): keeps no GPU, and takes"
    " its place again when enough are back",
)
SET_ASIDE = Part(
    MANAGER,
    "set aside, because the decision about it failed ({why}): keeps no GPU, and is tried again once"
    " it or a GPU has changed, at most once a minute. Please report this with the manager's log",
)
TURN_AT_ONCE = Part(QUEUE, "needs {gpus}; has its turn at once")
DISCONNECTED = Part(PROGRAM, "needs {gpus}; its process is disconnected")
CPU_JOBS = Part(
    QUOTA,
    "jobs of {owner} without a GPU: {running} run, as many as may ({setting}); waits for one of"
    " them to end",
)
WAITS_FOR_JOBS = Part(JOB, "waits for {jobs} to end well")
WAITS_FOR_MORE_JOBS = Part(JOB, "waits for {jobs} and {more} more to end well")
AWAITS_GPU_REPORT = Part(
    JOB, "{why}: counts as the job's own failure at {until}, unless the driver reports a GPU fault"
)
PAUSED = Part(
    JOB,
    "paused until {until}, then back at its place: {why} (nodemgr queue unhold {job} ends the"
    " pause)",
)
PAUSED_AGAIN = Part(
    JOB,
    "paused until {until}, then back at its place: {why}, interruption {times} in a row (nodemgr"
    " queue unhold {job} ends the pause)",
)
HELD = Part(JOB, "{why} (nodemgr queue unhold {job})")
HELD_BY = Part(JOB, "held by {by}")
HELD_PLAINLY = Part(JOB, "held")
NO_START_NOW = Part(MANAGER, "no job can be started now")
CONTAINER_DOWN = Part(
    CONTAINER,
    "waits for its container {container}{why}: start it, then run `nodemgr queue` there",
)
CONTAINER_UNKNOWN = Part(
    CONTAINER,
    "waits for its container, of which no engine here knows ({container}){why}: run `nodemgr"
    " queue` there while it lives, or withdraw it",
)
HOLDS = Part(NODE, "{env}/{task} holds {gpus} since {clock}")
SILENT_ON = Part(
    NODE,
    "{env}/{task} holds {gpus} since {clock} and is silent: it is stopped, or runs another program",
)
RUNS_ANOTHER = Part(
    NODE,
    "{env}/{task} holds {gpus} since {clock}, and runs another program since {since}",
)
RESERVED_FOR = Part(QUEUE, "{gpus} kept for {env}/{task}")
GPU_LOST = Part(DRIVER, "{gpus} lost")
GPU_DRAINED = Part(NODE, "{gpus} drained")
FORMER_MEMORY = Part(DRIVER, "{gpus} not yet free of a former task's memory")
USED_WITHOUT_LEASE = Part(NODE, "{gpus} in use by programs without a lease")
TOO_SMALL = Part(NODE, "{gpus} too small, or without memory to spare")
GPU_FAILED_JOB = Part(NODE, "{gpus} failed under an earlier attempt of this job")
MORE_HOLDERS = Part(NODE, "and {count} more")

# -- refusals of requests and submissions --

OVER_QUOTA = Message(
    QUOTA,
    "{gpus} asked, but the quota of {env} is {quota}",
    "ask for at most {quota}",
    code="quota",
    note="A request is refused at once if no release of GPUs could ever serve it.",
)
MORE_THAN_NODE_HAS = Message(
    NODE,
    "{gpus} asked, but this node has {node_gpus}",
    "ask for at most {node_gpus}",
    code="quota",
)
NODE_WITHOUT_GPU = Message(
    NODE,
    "this node has no GPU",
    "ask an admin, or run it without one (--gpus 0)",
    code="quota",
)
QUOTA_IS_ZERO = Message(
    QUOTA,
    "the quota of {env} is 0 GPUs",
    "an admin raises it (nodemgr quota set {env} --gpus N)",
    code="quota",
    note="An environment without GPUs can run jobs that need none.",
)
NO_GPU_ASKED = Message(
    PROGRAM, "no GPU was asked for", "ask for at least one (--gpus 1)", code="quota"
)
MEMORY_ABOVE_LIMIT = Message(
    QUOTA,
    "{need} per GPU asked, but {env} may have at most {limit}",
    "ask for less with --memory",
    code="quota",
    note="The limit is the memory quota over the GPUs of the environment, and the largest GPU.",
)
CLASS_ABOVE_LIMIT = Message(
    QUOTA,
    "class {asked} asked, but the highest class of {env} is {highest}",
    "ask for that one, or an admin for more (nodemgr quota set {env} --class)",
    code="quota",
)
COMPUTE_ABOVE_LIMIT = Message(
    QUOTA,
    "{asked}% of each GPU asked, but {env} may have at most {limit}%",
    "ask for less with --compute, or an admin for more (nodemgr quota set {env} --compute)",
    code="quota",
)
WOULD_WAIT = Message(
    QUEUE,
    "not available at once: {waiting}",
    "wait for it (nodemgr run --wait 10min)",
)
WAITED_IN_VAIN = Message(
    QUEUE,
    "timed out after {seconds} s: {waiting}",
    "wait longer (nodemgr run --wait), or ask for less",
    note="The request set the limit (`--wait`, NODEMGR_WAIT) and kept its place until then.",
)
ENV_WITHOUT_QUOTA = Message(
    QUOTA,
    "environment {env} has no quota on this node",
    "ask an admin (nodemgr quota set {env} --gpus N)",
    code="quota",
)
QUEUE_CLOSED = Message(
    QUEUE,
    "queue {queue} takes nothing at present, its cap is 0",
    "name another queue",
    code="refused",
)
QUEUE_FULL = Message(
    QUEUE,
    "queue {queue} is full: {waiting} waiting, its cap is {cap}",
    "try again later, or name another queue",
    code="refused",
)
NO_QUEUE = Message(QUEUE, "there is no queue {queue}", "there are {known}{meant}", code="not_found")
ABOVE_OWN_QUEUE = Message(
    QUOTA,
    "queue {queue} is above what {env} may ask for",
    "ask an admin (nodemgr quota set {env} --max-priority {queue})",
    code="quota",
)
ABOVE_HIGHEST_QUEUE = Message(
    QUOTA,
    "queue {queue} has rank {rank}, and the highest that {env} may ask for is {highest} with rank"
    " {highest_rank}",
    "name that or a lower one, or ask an admin (nodemgr quota set {env} --max-priority {queue})",
    code="quota",
)
QUEUE_OF_OTHERS = Message(
    QUEUE,
    "queue {queue} is for {users} alone",
    "name another queue, or ask an admin (nodemgr queue create --user)",
    code="quota",
)
NO_SUCH_JOB = Message(
    JOB, "no job {job} waits or runs", "`nodemgr queue` shows them", code="refused"
)
NO_JOB_TO_WAIT_FOR = Message(
    JOB,
    "{env} has no job {job}",
    "name a job that waits, runs or has ended well (nodemgr queue, nodemgr history)",
    code="not_found",
)
AWAITED_FAILED = Message(
    JOB,
    "{job}, which it waits for, failed",
    "mend that one and submit both again",
    code="not_found",
)
AWAITED_WITHDRAWN = Message(
    JOB,
    "{job}, which it waits for, was withdrawn",
    "submit it again, without that one or with a new one",
    code="not_found",
)
MANY_JOBS_THERE = Message(
    QUOTA,
    "{owner} has {there} jobs that wait or run, and {limit} are the most",
    "wait for some to end",
    code="refused",
)
JOBS_TOO_LARGE = Message(
    MANAGER,
    "the jobs of {env} that wait or run take {there} in the manager's store, this adds {added},"
    " and {limit} are the most (max_env_job_bytes)",
    "wait for some to end, withdraw some, or submit with fewer variables (env -i)",
    code="refused",
    note="The store holds command and environment variables of each job.",
)
MANY_AWAITED = Message(
    ORDER,
    "more than {limit} pairs of an element and a job it waits for",
    "let one job wait for them, and the array for that",
    code="usage",
    note="Each element of an array remembers each job of `--after`.",
)
WRONG_INDICES = Message(
    ORDER, "an array's indices must be different numbers from 0 on", code="usage"
)
RANGE_WITHOUT_SENSE = Message(
    ORDER, "a range of GPUs must begin with 1 or more, and end no lower", code="usage"
)
NEGATIVE_GPUS = Message(ORDER, "a number of GPUs must be 0 or more", code="usage")
MEMORY_WITHOUT_GPUS = Message(
    ORDER,
    "memory is per GPU, and a job without a GPU has none",
    "ask for a GPU, or leave --memory out",
    code="usage",
)
SHARE_WITHOUT_GPUS = Message(
    ORDER,
    "a class and a share are of GPUs, and a job without a GPU has none",
    "ask for a GPU, or leave --class and --compute out",
    code="usage",
)
NO_MEMORY = Message(ORDER, "memory must be more than nothing", code="usage")
NO_TIME = Message(ORDER, "a time limit must be more than nothing", code="usage")
NEGATIVE_RESTARTS = Message(ORDER, "a number of restarts must be 0 or more", code="usage")
NO_COMMAND_WORDS = Message(ORDER, "the job must have a command", code="usage")
LEDGER_FULL = Message(
    MANAGER,
    "{env} has as many processes with CUDA as its ledger has room for",
    "end some of them",
    note="The ledger is the shared table in which each process counts its GPU memory.",
)
MEMORY_TAKEN = Message(
    QUOTA,
    "the memory of {env} on its GPUs is given away as fixed caps or in use",
    "name less with --memory",
    note="Each process of a task with `--memory` has a cap of its own.",
)
NO_PROCESS_PLACED = Message(
    MANAGER, "no process of the task could be given a place", "run it again"
)

# -- the entries of a job's history --

STALLED_TOO_LONG = Part(
    MANAGER, "all its processes were silent since {since}, and `stalled` is `kill`"
)
JOB_STALLED = Part(
    JOB, "stalled since {since}: its processes are stopped or frozen; it keeps its GPUs"
)
WAS_SUBMITTED = Part(JOB, "submitted")
WAS_SUBMITTED_HELD = Part(JOB, "submitted, held")
WAS_HELD = Part(JOB, "held")
WAS_UNHELD = Part(JOB, "unheld")
WAS_UNPAUSED = Part(JOB, "unheld: its pause ends")
WAS_MOVED = Part(JOB, "moved to {queue}")
WAS_MOVED_TO_FRONT = Part(JOB, "moved to the front of {queue}")
WAS_REQUEUED = Part(JOB, "requeued")
WAS_PREEMPTED = Part(JOB, "preempted for {request}")
WAS_WITHDRAWN = Part(JOB, "withdrawn")

# -- objections to orders about jobs and queues --

JOB_UNDER_WAY = Message(JOB, "{job} is {state}", "withdraw it, or requeue it", code="refused")
JOB_BEING_ENDED = Message(
    JOB, "{job} is being ended already", "wait for its end (nodemgr wait {job})", code="refused"
)
JOB_NOT_ENDED = Message(
    JOB, "{job} has not ended", "withdraw it first, or wait for its end", code="refused"
)
JOB_HELD_ALREADY = Message(
    JOB, "{job} is held already", "`nodemgr queue unhold {job}` lets it start", code="refused"
)
JOB_NOT_HELD = Message(
    JOB, "{job} is not held", "it is {state}, and needs no unhold", code="refused"
)
JOB_WAITS_ALREADY = Message(
    JOB, "{job} waits already ({state})", "`nodemgr queue position {job}` says why", code="refused"
)
JOB_IN_NO_QUEUE = Message(
    JOB, "{job} is in no queue, since it is {state}", "unhold it first", code="refused"
)
JOB_NOT_YET_IN_QUEUE = Message(
    JOB,
    "{job} is in no queue, since it waits for other jobs (--after)",
    "move it when they have ended well",
    code="refused",
)
NO_NEW_PLACE = Message(
    ORDER, "the job's new place is missing", "name a queue, or the front of its own", code="usage"
)
LAST_QUEUE = Message(QUEUE, "{queue} is the last queue", "create another one first", code="refused")
REQUESTS_IN_QUEUE = Message(
    QUEUE,
    "queue {queue} has waiting entries ({count})",
    "move or withdraw them first",
    code="refused",
)
JOBS_OF_QUEUE = Message(
    QUEUE, "queue {queue} has jobs ({count})", "move or withdraw them first", code="refused"
)
QUEUE_OF_ENVS = Message(
    QUEUE,
    "queue {queue} is the queue of {envs}",
    "name another one first (nodemgr quota set --priority)",
    code="refused",
)
QUEUE_IS_LIMIT = Message(
    QUEUE,
    "queue {queue} is the highest that {envs} may ask for",
    "name another one first (nodemgr quota set --max-priority)",
    code="refused",
)
NEGATIVE_CAP = Message(ORDER, "a queue's cap must be 0 or more", code="refused")

# -- the ends of tasks, requests and jobs --

TAKEN_BACK = Message(
    JOB, "{by} took this task's GPUs back (nodemgr release)", "run it again to ask anew"
)
TAKEN_OUT = Message(
    JOB,
    "{by} took this request out of the queue (nodemgr release)",
    "run it again to ask anew",
)
QUOTA_REMOVED = Message(
    QUOTA, "the quota of {env} was removed by {by}", "ask an admin for a new one"
)
LEASE_OVER = Message(
    JOB,
    "this process holds no lease any more, which ended or was taken back while it was silent",
    "run it again",
    note="A task that was silent longer than `timeout_ms` may lose its GPUs to others.",
)
GPU_LOST_WHILE_STOPPED = Message(
    DRIVER, "{gpus} was lost while the task was stopped", "run it again"
)
GPUS_WENT = Message(
    JOB,
    "{gpus} went to others while the task was stopped",
    "run it again",
    note="A task that was stopped (Ctrl-Z, a debugger) keeps its GPUs only until others need them.",
)
RECLAIMED = Part(JOB, "reclaimed: silent for too long")
NOT_BACK = Part(PROGRAM, "it did not come back")
PROCESS_ENDED = Part(PROGRAM, "its process ended")
REQUEST_CANCELLED = Part(PROGRAM, "the request was cancelled")
JOINED = Part(JOB, "it joined a task that has a lease")
JOB_DONE = Part(JOB, "the job is done")
ENDED_BY_SIGNAL = Part(PROGRAM, "ended by signal {signal}")
ENDED_WITH_CODE = Part(PROGRAM, "exit code {exit_code}")
END_UNKNOWN = Part(JOB, "its end was not reported")
ENDED_WELL = Part(JOB, "{job} ended well")
WITHDRAWN_BY = Part(JOB, "{by} withdrew it")
REQUEUED_BY = Part(JOB, "{by} requeued it")
PREEMPTED_FOR = Part(
    JOB, "a latency-sensitive request of {env} needs the memory or the place of its GPU"
)
LOST_GPU_WHILE_RUN = Part(DRIVER, "GPU {index} was lost or failed while it ran ({why})")
LOST_GPU_UNKNOWN = Part(DRIVER, "its GPU was lost or failed while it ran ({why})")

# -- news of GPUs, findings of the audit --

GPU_IS_BACK = Notice(DRIVER, "GPU {index} ({name}) is back")
GPU_IS_LOST = Message(
    DRIVER,
    "GPU {index} ({name}) is lost: what runs on it will fail",
    "end the task and run it again",
)
GPU_HAS_FAILED = Message(
    DRIVER,
    "GPU {index} ({name}) failed: {evidence}: the task may fail or compute wrong results",
    "end the task and run it again: a new request avoids the GPU for an hour",
)
GPU_DRAINED_BY_MANAGER = Message(
    DRIVER,
    "GPU {index} is drained ({why})",
    "nodemgr gpu repaired {index} brings it back after a repair",
)
GPU_DRAINED_BY_ORDER = Message(
    NODE,
    "GPU {index} is drained (by order of {by}{note})",
    "nodemgr gpu resume {index} ends that, nodemgr gpu repaired {index} after a repair",
)
GPU_STAYS_IN_USE = Message(
    DRIVER,
    "GPU {index} fails again and again and stays in use as the last one",
    "nodemgr gpu drain {index} takes it out, nodemgr gpu repaired {index} follows a repair",
)
GPU_IS_MISSING = Message(
    DRIVER,
    "GPU {index} is lost, the driver does not show it or shows it as ill",
    "nvidia-smi and dmesg have more",
)
FAILED_REPEATEDLY = Part(DRIVER, "{count} failures within an hour")
VANISHED = Part(DRIVER, "the driver no longer shows it")
REPORTED_FAILURE = Part(NODE, "reported by {by}: {note}")
REPORTED_FAILURE_PLAINLY = Part(NODE, "reported by {by}")
ATTEMPT_FAILED = Part(JOB, "{job}, attempt {attempt}, failed beside it")
ANOTHERS_ATTEMPT_FAILED = Part(JOB, "a job of another environment failed beside it")

# -- why GPUs were chosen --

CHOSEN_BY_ORDER = Part(NODE, "{name}: {meaning}")
CHOSEN_BY_LEARNED = Part(NODE, "learned: the highest scores by the trained weights")
HIGHEST_SCORE_FIRST = Part(NODE, "highest score by the trained weights first")
FEWEST_FAILURES_FIRST = Part(NODE, "for a long job, fewest failures first")
CHOSEN_AGAIN = Part(QUOTA, "GPUs of its own environment, the fewest tasks first")
CHOSEN_FOR_A_LONG_JOB = Part(
    NODE,
    "reliable: the GPUs with the fewest failures for {gpus} x {hours} h (at most {rate} failures in"
    " 1000 h, expected loss {minutes} GPU minutes)",
)
CHOSEN_WITHOUT_A_TIME = Part(
    NODE,
    "reliable: the GPUs with the fewest failures, as no time is known (at most {rate} failures in"
    " 1000 h, expected loss {minutes} GPU minutes in {hours} h)",
)
CHOSEN_FOR_A_SHORT_JOB = Part(
    NODE,
    "reliable: {gpus} x {hours} h is short and leaves the better GPUs to others (at most {rate}"
    " failures in 1000 h, expected loss {minutes} GPU minutes)",
)

OWNER_UNKNOWN = Part(NODE, "of no known environment")
OWNER_ENV = Part(NODE, "of {env}")
OWNER_TASK = Part(NODE, "of {env}/{task}")
USES_WITHOUT_LEASE = Part(NODE, "process {pid} {owner} uses {size} of GPU {index} without a lease")
USES_TOO_MUCH = Part(
    NODE,
    "process {pid} {owner} uses {size} of GPU {index} beyond its charges; {env} may use {allowed}"
    " there",
)
USES_MORE_COMPUTE = Part(
    NODE,
    "process {pid} {owner} uses {used} % of GPU {index}'s compute while its gate is closed; its"
    " share is {allowed} %",
)
GARBLES_GATE = Part(
    NODE,
    "process {pid} {owner}, or another one of its env, has written impossible words into the launch"
    " gate of GPU {index}",
)
COMPUTE_FINDING = Message(
    QUOTA,
    "by the launch gate, {finding}",
    "run the program with the nodemgr library as it is, or ask an admin for a larger share"
    " (nodemgr quota set --compute)",
    note="The manager closes the gate of a task that uses more than its share while another task"
    " waits. Work that goes on behind a closed gate bypasses it.",
)
AUDIT_FINDING = Message(
    QUOTA,
    "by the driver's figures, {finding}",
    "free it, or ask an admin for more (nodemgr quota set)",
    note="The manager compares the memory that it granted with the driver's figures.",
)

WITHOUT_GATE_NOTE = Message(
    NODE,
    "the launches of this process pass no gate, so the share of {task} is not kept: {reason}",
    "end processes of this GPU, then start this one again",
    note="A process that was granted GPUs while their launch gates had no place for it. `status"
    " --json` shows `gate` as `none` for its task.",
)

# -- suspension --

ENDED_WHILE_SUSPENDED = Message(
    JOB,
    "the task {task} ended while it was suspended",
    "ask again for a lease of its own",
    note="To a process that wanted to join a suspended task.",
)
FENCED_WHILE_SUSPENDED = Part(
    JOB,
    "{reason}; it was suspended, so its processes are ended: without a lease their GPU memory"
    " cannot come back",
)
SUSPENDED_NOTE = Notice(
    NODE,
    "the GPU memory of {task} is in host memory now, because another task waits or by"
    " `nodemgr suspend`; nothing is lost, and the next use of the GPU or `nodemgr resume {task}`"
    " brings it back",
)
IDLE_SUSPEND_WARNING = Notice(
    QUOTA,
    "{task} has used no GPU for {span}, and a task of {env} waits: in {seconds} s its GPU"
    " memory goes to host memory; %gpu keep 2h, or `nodemgr keep {task} --for 2h`, prevents it",
)
IDLE_RELEASE_WARNING = Notice(
    QUOTA,
    "{task} has used no GPU for {span}, and a task of {env} waits: in {seconds} s its GPUs"
    " are taken back; %gpu keep 2h, or `nodemgr keep {task} --for 2h`, prevents it",
)
IDLE_RELEASED = Message(
    QUOTA,
    "its GPUs were taken back after {span} without a use, for a task of {env}",
    "run it again to ask anew",
)
SUSPEND_UNDONE = Message(
    DRIVER,
    "{task} is not suspended and goes on: {reason}",
    "`nodemgr release {task}` takes its GPUs back",
)
RESUME_WAITS = Notice(DRIVER, "{task} is not resumed yet: {reason}")
RESUME_FAILED = Message(
    DRIVER,
    "the GPU memory of {task} did not come back: {reason}",
    "try `nodemgr resume {task}` once more, else end its processes",
)

# -- forecasts --

FEATURES_OF_OTHER_VERSION = Message(
    ORDER, "the features are of another version: `schema_version` must be {version}"
)
FEATURES_NO_OBJECT = Message(ORDER, "the features have no form: `{place}` must be a JSON object")
FEATURES_UNKNOWN = Message(
    ORDER,
    "`{place}` of the features has unknown names: {names}",
    "use a client of the manager's version",
)
FEATURES_NO_NUMBER = Message(
    ORDER, "`{place}` of the features must be a whole number from {low} to {high}"
)
FEATURES_FRAMEWORK = Message(
    ORDER,
    "`framework` of the features must be a name and a version, at most {limit} letters, digits,"
    " spaces and . _ + -",
)
FEATURES_LONG_WORK = Message(ORDER, "`work` of the features must be a list of at most {limit} rows")
FEATURES_NO_WORK = Message(
    ORDER,
    "`{place}` of the features must be a precision of {precisions}, then intensity, operations,"
    " bytes and kernels",
)
WEIGHTS_WITHOUT_SENSE = Part(NODE, "the learned weights have no sense at `{place}`")
FORECAST_NEEDS_WORK = Part(PROGRAM, "no operations of a step were counted")
FORECAST_NOT_LEARNED = Part(
    NODE, "nothing was learned yet: too few tasks with a known time of a step have ended"
)
FORECAST_NOT_BETTER = Part(NODE, "what was learned is no better than the estimate")
FORECAST_OUTSIDE = Part(NODE, "no task like this one has ended on the node: only an estimate")
FORECAST_UNKNOWN_MODEL = Part(
    NODE,
    "the peak rates of {name} are not known here{meant}: name them as `--gpu NAME:TFLOPS:GBPS:GIB`",
)
FORECAST_OF_NOTHING = Part(PROGRAM, "neither memory nor operations of a step were found")

# -- elastic tasks --

RANGE_ABOVE_QUOTA = Message(
    QUOTA,
    "the range ends at {most} GPUs; the quota of {env} is {quota}, and it may borrow {borrow}",
    "ask for a smaller range",
)
RANGE_ABOVE_NODE = Message(
    NODE, "the range ends at {most} GPUs; the node has {there}", "ask for a smaller range"
)
MEMORY_RANGE_ABOVE_QUOTA = Message(
    QUOTA,
    "the range of memory ends at {most}; the memory quota of {env} is {quota}",
    "ask for a smaller range",
)
MEMORY_RANGE_ABOVE_GPU = Message(
    NODE,
    "the range of memory ends at {most}; the largest GPU of the node has {total}",
    "ask for a smaller range",
)
MEMORY_RANGE_OVER_UDP = Message(
    ORDER,
    "memory cannot grow and shrink over UDP, where each process has a fixed limit",
    "run it on the node itself, or name one size with --memory",
)
ELASTIC_OVER_UDP = Message(
    ORDER,
    "an elastic task cannot hold GPUs over UDP",
    "run it on the node itself, or without --elastic",
)
WORKER_WITHOUT_TASK = Message(
    ORDER,
    "NODEMGR_WORKER_GPU is set, and the process belongs to no elastic task",
    "start it by `nodemgr run --elastic`, or unset the variable",
)
WORKER_OF_OTHER_GPU = Message(
    ORDER,
    "NODEMGR_WORKER_GPU names {gpu}, which is not in the lease of {task}",
    "its leader starts workers on GPUs of the lease alone",
)
NOT_THE_LEADER = Message(
    ORDER,
    "the process does not lead an elastic task",
    "only the process that asked for the range speaks for it",
)
RECALLED = Part(NODE, "{request} waits for it")
RECALLED_FOR_QUOTA = Part(
    QUOTA, "the quota of {env} was lowered to {quota} GPUs, and it may borrow {borrow}"
)
RECALL_EXPIRED = Message(
    NODE,
    "GPU {index} was recalled for {request}, and the task did not leave it within {seconds} s",
    "the task goes on with its other GPUs",
)
OFFER_DECLINED = Part(PROGRAM, "the task declined the offer")
GPU_WAS_IDLE = Part(NODE, "it was idle")
GPU_BORROWED = Part(QUOTA, "it was idle, and {env} borrows it beyond its quota of {quota}")
BORROWED_LEFT_FOR = Part(PROGRAM, "the task left it, which it had borrowed, for {request}")
LEFT_FOR = Part(PROGRAM, "the task left it for {request}")
LOWERED_QUOTA = Part(QUOTA, "the lowered quota of {env}")
"""In the place of a request: the reason of a recall."""
LEFT_BY_ITSELF = Part(PROGRAM, "the task gave it back")
