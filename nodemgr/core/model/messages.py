"""The messages of the core: refusals, reasons to wait, the ends of tasks and jobs.

A reason to wait is a Part: `nodemgr queue` prints it in a column, and the waiting line ends with
it.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Notice,
    Part,
)

# -- reasons to wait --

PLACE = Part("place {position} in queue {queue}: {why}")
PLACE_AFTER = Part("place {position} in queue {queue} (after {ahead} in other queues): {why}")
NEEDS_QUOTA_MEMORY = Part(
    "needs {need} of {env}'s memory quota per GPU, {left} left: waits for {holders}",
)
NEEDS_ROOM_ON_OWN_GPU = Part(
    "needs {need} free on a GPU that {env} holds: waits for its own tasks to free memory",
)
NEEDS_COMPUTE_ON_OWN_GPU = Part(
    "needs {percent} % of the compute of GPUs that {env} holds, {free} % free: waits for the tasks"
    " there",
)
NEEDS_ROOM_OF_SUSPENDED = Part(
    "needs {need} on {gpus}, where {env}'s suspended tasks gave their room to others",
)
NEEDS_ROOM_OF_LEFT = Part(
    "needs {need} free on {gpus}, where processes of {env} that left their tasks still have memory",
)
NEEDS_RESERVED_COMPUTE = Part("needs {percent} % of the compute of GPUs that {env} holds")
NEEDS_COMPUTE = Part(
    "needs {gpus} with {percent} % of the compute free, at most {free} % free on any GPU"
)
NEEDS_COMPUTE_ON_MORE_GPUS = Part(
    "needs {gpus} with {percent} % of the compute free on each, and finds {fitting}"
)
NEEDS_QUOTA_GPUS = Part(
    "needs {gpus} of the {quota} in {env}'s quota, {left} left: waits for its own tasks"
)
NEEDS_DRAINED_GPU = Part(
    "needs {gpus}; {env}'s quota of {quota} includes {drained} (drained, no new task): waits for "
    "the tasks there, or an administrator runs `nodemgr gpu resume {index}` or raises the quota",
)
NEEDS_FREE_GPUS = Part("needs {gpus}, {free} free")
FEWER_WOULD_START = Part("`--gpus {gpus}` would start now")
MEMORY_WOULD_SHARE = Part("`--memory SIZE` would share a GPU where SIZE is free")
NEXT_KNOWN_END = Part("next known end {clock}: {env}/{job}, time limit")
RESUME_NEEDS_ROOM = Part("{task} is suspended and needs {need} again on {gpus}, {free} free")
RESUME_NEEDS_COMPUTE = Part(
    "{task} is suspended and needs {percent} % of the compute of {gpus} again"
)
RESUME_NEEDS_GPU = Part("{task} is suspended and waits for {gpus}, which the node has lost")
RESUME_AFTER_SUSPENSION = Part("{task} is resumed when its suspension has ended")
RESUME_AT_ONCE = Part("{task} is resumed at once")
BEHIND_OWN = Part("needs {gpus}; {before} of its own environment comes first")
PLACE_DOWN = Part("needs {gpus}; {why}")
ABOVE_QUOTA = Part(
    "needs {gpus}, but the quota of {env} is {quota} now: waits until an admin raises it",
)
ABOVE_MEMORY = Part(
    "needs {need} per GPU, but {env} may have at most {limit} now: waits until an admin raises"
    " its quota",
)
SHARE_ABOVE_QUOTA = Part("waits until an admin raises its quota: {refusal}")
ABOVE_NODE = Part(
    "needs {gpus}, but the node has {fitting} in service for it ({others}): keeps no GPU, and takes"
    " its place again when enough are back",
)
SET_ASIDE = Part(
    "set aside, because the decision about it failed ({why}): keeps no GPU, and is tried again once"
    " it or a GPU has changed, at most once a minute. Please report this with the manager's log",
)
TURN_AT_ONCE = Part("needs {gpus}; has its turn at once")
DISCONNECTED = Part("needs {gpus}; its process is disconnected")
CPU_JOBS = Part(
    "jobs of {owner} without a GPU: {running} run, as many as may ({setting}); waits for one of"
    " them to end",
)
WAITS_FOR_JOBS = Part("waits for {jobs} to end well")
WAITS_FOR_MORE_JOBS = Part("waits for {jobs} and {more} more to end well")
AWAITS_GPU_REPORT = Part(
    "{why}: counts as the job's own failure at {until}, unless the driver reports a GPU fault"
)
PAUSED = Part(
    "paused until {until}, then back at its place: {why} (nodemgr queue unhold {job} ends the"
    " pause)",
)
PAUSED_AGAIN = Part(
    "paused until {until}, then back at its place: {why}, interruption {times} in a row (nodemgr"
    " queue unhold {job} ends the pause)",
)
HELD = Part("{why} (nodemgr queue unhold {job})")
HELD_BY = Part("held by {by}")
HELD_PLAINLY = Part("held")
UNCONFIRMED = Part(
    "waits for the word of {head}, which assigned it: the manager has started anew since then"
)
NO_START_NOW = Part("no job can be started now")
CONTAINER_DOWN = Part(
    "waits for its container {container}{why}: start it, then run `nodemgr queue` there",
)
CONTAINER_UNKNOWN = Part(
    "waits for its container, of which no engine here knows ({container}){why}: run `nodemgr"
    " queue` there while it lives, or withdraw it",
)
HOLDS = Part("{env}/{task} holds {gpus} since {clock}")
SILENT_ON = Part(
    "{env}/{task} holds {gpus} since {clock} and is silent: it is stopped, or runs another program",
)
RUNS_ANOTHER = Part(
    "{env}/{task} holds {gpus} since {clock}, and runs another program since {since}",
)
RESERVED_FOR = Part("{gpus} kept for {env}/{task}")
GPU_LOST = Part("{gpus} lost")
GPU_DRAINED = Part("{gpus} drained")
FORMER_MEMORY = Part("{gpus} not yet free of a former task's memory")
USED_WITHOUT_LEASE = Part("{gpus} in use by programs without a lease")
TOO_SMALL = Part("{gpus} too small, or without memory to spare")
GPU_FAILED_JOB = Part("{gpus} failed under an earlier attempt of this job")
MORE_HOLDERS = Part("and {count} more")

# -- refusals of requests and submissions --

OVER_QUOTA = Message(
    "{gpus} asked, but the quota of {env} is {quota}",
    "ask for at most {quota}",
    code="quota",
)
MORE_THAN_NODE_HAS = Message(
    "{gpus} asked, but this node has {node_gpus}",
    "ask for at most {node_gpus}",
    code="quota",
)
NODE_WITHOUT_GPU = Message(
    "this node has no GPU",
    "ask an admin, or run it without one (--gpus 0)",
    code="quota",
)
QUOTA_IS_ZERO = Message(
    "the quota of {env} is 0 GPUs",
    "an admin raises it (nodemgr quota set {env} --gpus N)",
    code="quota",
)
NO_GPU_ASKED = Message("no GPU was asked for", "ask for at least one (--gpus 1)", code="quota")
OF_CPUS = Part("{count} CPUs")
OF_HOST_MEMORY = Part("{size} of host memory")
HOST_SHORT = Part(
    "needs {asked}; jobs of {owner} reserve {used} of {limit}; waits for one of them to end"
)
BEHIND_FOR_HOST = Part("an earlier job, {job}, waits for CPUs or host memory")
HOST_ABOVE_QUOTA = Message(
    "{asked} asked, but all jobs of {env} together may have {limit}",
    "ask for less with {option}, or an admin for more (nodemgr quota set {env} {option})",
    code="quota",
)
HOST_ABOVE_NODE = Message(
    "{asked} asked, but this node has {limit}", "ask for less with {option}", code="quota"
)
MEMORY_ABOVE_LIMIT = Message(
    "{need} per GPU asked, but {env} may have at most {limit}",
    "ask for less with --memory",
    code="quota",
)
CLASS_ABOVE_LIMIT = Message(
    "class {asked} asked, but the highest class of {env} is {highest}",
    "ask for that one, or an admin for more (nodemgr quota set {env} --class)",
    code="quota",
)
COMPUTE_ABOVE_LIMIT = Message(
    "{asked}% of each GPU asked, but {env} may have at most {limit}%",
    "ask for less with --compute, or an admin for more (nodemgr quota set {env} --compute)",
    code="quota",
)
WOULD_WAIT = Message(
    "not available at once: {waiting}",
    "wait for it (nodemgr run --wait 10min)",
)
WAITED_IN_VAIN = Message(
    "timed out after {seconds} s: {waiting}",
    "wait longer (nodemgr run --wait), or ask for less",
)
ENV_WITHOUT_QUOTA = Message(
    "environment {env} has no quota on this node",
    "ask an admin (nodemgr quota set {env} --gpus N)",
    code="quota",
)
QUEUE_CLOSED = Message(
    "queue {queue} takes nothing at present, its cap is 0",
    "name another queue",
    code="refused",
)
QUEUE_FULL = Message(
    "queue {queue} is full: {waiting} waiting, its cap is {cap}",
    "try again later, or name another queue",
    code="refused",
)
NO_QUEUE = Message("there is no queue {queue}", "there are {known}{meant}", code="not_found")
ABOVE_OWN_QUEUE = Message(
    "queue {queue} is above what {env} may ask for",
    "ask an admin (nodemgr quota set {env} --max-priority {queue})",
    code="quota",
)
ABOVE_HIGHEST_QUEUE = Message(
    "queue {queue} has rank {rank}, and the highest that {env} may ask for is {highest} with rank"
    " {highest_rank}",
    "name that or a lower one, or ask an admin (nodemgr quota set {env} --max-priority {queue})",
    code="quota",
)
QUEUE_OF_OTHERS = Message(
    "queue {queue} is for {users} alone",
    "name another queue, or ask an admin (nodemgr queue create --user)",
    code="quota",
)
NO_SUCH_JOB = Message("no job {job} waits or runs", "`nodemgr queue` shows them", code="refused")
NO_JOB_TO_WAIT_FOR = Message(
    "{env} has no job {job}",
    "name a job that waits, runs or has ended well (nodemgr queue, nodemgr history)",
    code="not_found",
)
AWAITED_FAILED = Message(
    "{job}, which it waits for, failed",
    "mend that one and submit both again",
    code="not_found",
)
AWAITED_WITHDRAWN = Message(
    "{job}, which it waits for, was withdrawn",
    "submit it again, without that one or with a new one",
    code="not_found",
)
MANY_JOBS_THERE = Message(
    "{owner} has {there} jobs that wait or run, and {limit} are the most",
    "wait for some to end",
    code="refused",
)
JOBS_TOO_LARGE = Message(
    "the jobs of {env} that wait or run take {there} in the manager's store, this adds {added},"
    " and {limit} are the most (max_env_job_bytes)",
    "wait for some to end, withdraw some, or submit with fewer variables (env -i)",
    code="refused",
)
MANY_AWAITED = Message(
    "more than {limit} pairs of an element and a job it waits for",
    "let one job wait for them, and the array for that",
    code="usage",
)
MANY_RUNS = Message(
    "an array's indices are more than {limit} separate runs of numbers",
    "submit several arrays",
    code="usage",
)
WRONG_INDICES = Message("an array's indices must be different numbers from 0 on", code="usage")
RANGE_WITHOUT_SENSE = Message(
    "a range of GPUs must begin with 1 or more, and end no lower", code="usage"
)
NEGATIVE_GPUS = Message("a number of GPUs must be 0 or more", code="usage")
MEMORY_WITHOUT_GPUS = Message(
    "memory is per GPU, and a job without a GPU has none",
    "ask for a GPU, or leave --memory out",
    code="usage",
)
SHARE_WITHOUT_GPUS = Message(
    "a class and a share are of GPUs, and a job without a GPU has none",
    "ask for a GPU, or leave --class and --compute out",
    code="usage",
)
NO_MEMORY = Message("memory must be more than nothing", code="usage")
NO_TIME = Message("a time limit must be more than nothing", code="usage")
SIGNAL_BEFORE_START = Message(
    "--signal is due before the job starts", "name a time shorter than --time", code="usage"
)
NEGATIVE_RESTARTS = Message("a number of restarts must be 0 or more", code="usage")
NO_COMMAND_WORDS = Message("the job must have a command", code="usage")
LEDGER_FULL = Message(
    "{env} has as many processes with CUDA as its ledger has room for",
    "end some of them",
)
MEMORY_TAKEN = Message(
    "the memory of {env} on its GPUs is given away as fixed caps or in use",
    "name less with --memory",
)
NO_PROCESS_PLACED = Message("no process of the task could be given a place", "run it again")

# -- the entries of a job's history --

STALLED_TOO_LONG = Part("all its processes were silent since {since}, and `stalled` is `kill`")
JOB_STALLED = Part("stalled since {since}: its processes are stopped or frozen; it keeps its GPUs")
WAS_SUBMITTED = Part("submitted")
WAS_SUBMITTED_HELD = Part("submitted, held")
WAS_HELD = Part("held")
WAS_UNHELD = Part("unheld")
WAS_UNPAUSED = Part("unheld: its pause ends")
WAS_MOVED = Part("moved to {queue}")
WAS_MOVED_TO_FRONT = Part("moved to the front of {queue}")
WAS_REQUEUED = Part("requeued")
WAS_PREEMPTED = Part("preempted for {request}")
WAS_WITHDRAWN = Part("withdrawn")

# -- objections to orders about jobs and queues --

JOB_UNDER_WAY = Message("{job} is {state}", "withdraw it, or requeue it", code="refused")
JOB_BEING_ENDED = Message(
    "{job} is being ended already", "wait for its end (nodemgr wait {job})", code="refused"
)
JOB_NOT_ENDED = Message(
    "{job} has not ended", "withdraw it first, or wait for its end", code="refused"
)
JOB_OF_HEAD = Message(
    "{job} is a job of the cluster of {head}, which orders it",
    "give the order there; `nodemgr queue withdraw {job}` ends it here",
    code="refused",
)
ASSIGNMENT_OVER = Message(
    "{key} was assigned to this node and is over", "nothing is to be done", code="refused"
)
MANY_ASSIGNMENTS = Message(
    "this node keeps the ends of {limit} assigned jobs, and their head has not acknowledged them",
    "acknowledge them first",
    code="store",
)
JOB_HELD_ALREADY = Message(
    "{job} is held already", "`nodemgr queue unhold {job}` lets it start", code="refused"
)
JOB_NOT_HELD = Message("{job} is not held", "it is {state}, and needs no unhold", code="refused")
JOB_WAITS_ALREADY = Message(
    "{job} waits already ({state})", "`nodemgr queue position {job}` says why", code="refused"
)
JOB_IN_NO_QUEUE = Message(
    "{job} is in no queue, since it is {state}", "unhold it first", code="refused"
)
JOB_NOT_YET_IN_QUEUE = Message(
    "{job} is in no queue, since it waits for other jobs (--after)",
    "move it when they have ended well",
    code="refused",
)
NO_NEW_PLACE = Message(
    "the job's new place is missing", "name a queue, or the front of its own", code="usage"
)
LAST_QUEUE = Message("{queue} is the last queue", "create another one first", code="refused")
REQUESTS_IN_QUEUE = Message(
    "queue {queue} has waiting entries ({count})",
    "move or withdraw them first",
    code="refused",
)
JOBS_OF_QUEUE = Message(
    "queue {queue} has jobs ({count})", "move or withdraw them first", code="refused"
)
QUEUE_OF_ENVS = Message(
    "queue {queue} is the queue of {envs}",
    "name another one first (nodemgr quota set --priority)",
    code="refused",
)
QUEUE_IS_LIMIT = Message(
    "queue {queue} is the highest that {envs} may ask for",
    "name another one first (nodemgr quota set --max-priority)",
    code="refused",
)
NEGATIVE_CAP = Message("a queue's cap must be 0 or more", code="refused")

# -- the ends of tasks, requests and jobs --

TAKEN_BACK = Message(
    "{by} took this task's GPUs back (nodemgr release)", "run it again to ask anew"
)
TAKEN_OUT = Message(
    "{by} took this request out of the queue (nodemgr release)",
    "run it again to ask anew",
)
QUOTA_REMOVED = Message("the quota of {env} was removed by {by}", "ask an admin for a new one")
LEASE_OVER = Message(
    "this process holds no lease any more, which ended or was taken back while it was silent",
    "run it again",
)
GPU_LOST_WHILE_STOPPED = Message("{gpus} was lost while the task was stopped", "run it again")
GPUS_WENT = Message(
    "{gpus} went to others while the task was stopped",
    "run it again",
)
RECLAIMED = Part("reclaimed: silent for too long")
NOT_BACK = Part("it did not come back")
PROCESS_ENDED = Part("its process ended")
REQUEST_CANCELLED = Part("the request was cancelled")
JOINED = Part("it joined a task that has a lease")
JOB_DONE = Part("the job is done")
ENDED_BY_SIGNAL = Part("ended by signal {signal}")
ENDED_WITH_CODE = Part("exit code {exit_code}")
END_UNKNOWN = Part("its end was not reported")
ENDED_WELL = Part("{job} ended well")
WITHDRAWN_BY = Part("{by} withdrew it")
REQUEUED_BY = Part("{by} requeued it")
PREEMPTED_FOR = Part(
    "a latency-sensitive request of {env} needs the memory or the place of its GPU"
)
LOST_GPU_WHILE_RUN = Part("GPU {index} was lost or failed while it ran ({why})")
LOST_GPU_UNKNOWN = Part("its GPU was lost or failed while it ran ({why})")

# -- news of GPUs, findings of the audit --

GPU_IS_BACK = Notice("GPU {index} ({name}) is back")
GPU_IS_LOST = Message(
    "GPU {index} ({name}) is lost: what runs on it will fail",
    "end the task and run it again",
)
GPU_HAS_FAILED = Message(
    "GPU {index} ({name}) failed: {evidence}: the task may fail or compute wrong results",
    "end the task and run it again: a new request avoids the GPU for an hour",
)
GPU_DRAINED_BY_MANAGER = Message(
    "GPU {index} is drained ({why})",
    "nodemgr gpu repaired {index} brings it back after a repair",
)
GPU_DRAINED_BY_ORDER = Message(
    "GPU {index} is drained (by order of {by}{note})",
    "nodemgr gpu resume {index} ends that, nodemgr gpu repaired {index} after a repair",
)
GPU_STAYS_IN_USE = Message(
    "GPU {index} fails again and again and stays in use as the last one",
    "nodemgr gpu drain {index} takes it out, nodemgr gpu repaired {index} follows a repair",
)
GPU_IS_MISSING = Message(
    "GPU {index} is lost, the driver does not show it or shows it as ill",
    "nvidia-smi and dmesg have more",
)
FAILED_REPEATEDLY = Part("{count} failures within an hour")
VANISHED = Part("the driver no longer shows it")
REPORTED_FAILURE = Part("reported by {by}: {note}")
REPORTED_FAILURE_PLAINLY = Part("reported by {by}")
ATTEMPT_FAILED = Part("{job}, attempt {attempt}, failed beside it")
ANOTHERS_ATTEMPT_FAILED = Part("a job of another environment failed beside it")

# -- why GPUs were chosen --

CHOSEN_BY_ORDER = Part("{name}: {meaning}")
CHOSEN_BY_LEARNED = Part("learned: the highest scores by the trained weights")
HIGHEST_SCORE_FIRST = Part("highest score by the trained weights first")
FEWEST_FAILURES_FIRST = Part("for a long job, fewest failures first")
CHOSEN_AGAIN = Part("GPUs of its own environment, the fewest tasks first")
CHOSEN_FOR_A_LONG_JOB = Part(
    "reliable: the GPUs with the fewest failures for {gpus} x {hours} h (at most {rate} failures in"
    " 1000 h, expected loss {minutes} GPU minutes)",
)
CHOSEN_WITHOUT_A_TIME = Part(
    "reliable: the GPUs with the fewest failures, as no time is known (at most {rate} failures in"
    " 1000 h, expected loss {minutes} GPU minutes in {hours} h)",
)
CHOSEN_FOR_A_SHORT_JOB = Part(
    "reliable: {gpus} x {hours} h is short and leaves the better GPUs to others (at most {rate}"
    " failures in 1000 h, expected loss {minutes} GPU minutes)",
)

OWNER_UNKNOWN = Part("of no known environment")
OWNER_ENV = Part("of {env}")
OWNER_TASK = Part("of {env}/{task}")
USES_WITHOUT_LEASE = Part("process {pid} {owner} uses {size} of GPU {index} without a lease")
USES_TOO_MUCH = Part(
    "process {pid} {owner} uses {size} of GPU {index} beyond its charges; {env} may use {allowed}"
    " there",
)
USES_MORE_COMPUTE = Part(
    "process {pid} {owner} uses {used} % of GPU {index}'s compute while its gate is closed; its"
    " share is {allowed} %",
)
GARBLES_GATE = Part(
    "process {pid} {owner}, or another one of its env, has written impossible words into the launch"
    " gate of GPU {index}",
)
COMPUTE_FINDING = Message(
    "by the launch gate, {finding}",
    "run the program with the nodemgr library as it is, or ask an admin for a larger share"
    " (nodemgr quota set --compute)",
)
AUDIT_FINDING = Message(
    "by the driver's figures, {finding}",
    "free it, or ask an admin for more (nodemgr quota set)",
)

WITHOUT_GATE_NOTE = Message(
    "the launches of this process pass no gate, so the share of {task} is not kept: {reason}",
    "end processes of this GPU, then start this one again",
)

# -- suspension --

ENDED_WHILE_SUSPENDED = Message(
    "the task {task} ended while it was suspended",
    "ask again for a lease of its own",
)
FENCED_WHILE_SUSPENDED = Part(
    "{reason}; it was suspended, so its processes are ended: without a lease their GPU memory"
    " cannot come back",
)
SUSPENDED_NOTE = Notice(
    "the GPU memory of {task} is in host memory now, because another task waits or by"
    " `nodemgr suspend`; nothing is lost, and the next use of the GPU or `nodemgr resume {task}`"
    " brings it back",
)
IDLE_SUSPEND_WARNING = Notice(
    "{task} has used no GPU for {span}, and a task of {env} waits: in {seconds} s its GPU"
    " memory goes to host memory; %gpu keep 2h, or `nodemgr keep {task} --for 2h`, prevents it",
)
IDLE_RELEASE_WARNING = Notice(
    "{task} has used no GPU for {span}, and a task of {env} waits: in {seconds} s its GPUs"
    " are taken back; %gpu keep 2h, or `nodemgr keep {task} --for 2h`, prevents it",
)
IDLE_RELEASED = Message(
    "its GPUs were taken back after {span} without a use, for a task of {env}",
    "run it again to ask anew",
)
SUSPEND_UNDONE = Message(
    "{task} is not suspended and goes on: {reason}",
    "`nodemgr release {task}` takes its GPUs back",
)
RESUME_WAITS = Notice("{task} is not resumed yet: {reason}")
RESUME_FAILED = Message(
    "the GPU memory of {task} did not come back: {reason}",
    "try `nodemgr resume {task}` once more, else end its processes",
)

# -- forecasts --

FEATURES_OF_OTHER_VERSION = Message(
    "the features are of another version: `schema_version` must be {version}"
)
FEATURES_NO_OBJECT = Message("the features have no form: `{place}` must be a JSON object")
FEATURES_UNKNOWN = Message(
    "`{place}` of the features has unknown names: {names}",
    "use a client of the manager's version",
)
FEATURES_NO_NUMBER = Message(
    "`{place}` of the features must be a whole number from {low} to {high}"
)
FEATURES_FRAMEWORK = Message(
    "`framework` of the features must be a name and a version, at most {limit} letters, digits,"
    " spaces and . _ + -",
)
FEATURES_LONG_WORK = Message("`work` of the features must be a list of at most {limit} rows")
FEATURES_NO_WORK = Message(
    "`{place}` of the features must be a precision of {precisions}, then intensity, operations,"
    " bytes and kernels",
)
WEIGHTS_WITHOUT_SENSE = Part("the learned weights have no sense at `{place}`")
FORECAST_NEEDS_WORK = Part("no operations of a step were counted")
FORECAST_NOT_LEARNED = Part(
    "nothing was learned yet: too few tasks with a known time of a step have ended"
)
FORECAST_NOT_BETTER = Part("what was learned is no better than the estimate")
FORECAST_OUTSIDE = Part("no task like this one has ended on the node: only an estimate")
FORECAST_UNKNOWN_MODEL = Part(
    "the peak rates of {name} are not known here{meant}: name them as `--gpu NAME:TFLOPS:GBPS:GIB`",
)
FORECAST_OF_NOTHING = Part("neither memory nor operations of a step were found")

# -- elastic tasks --

RANGE_ABOVE_QUOTA = Message(
    "the range ends at {most} GPUs; the quota of {env} is {quota}, and it may borrow {borrow}",
    "ask for a smaller range",
)
RANGE_ABOVE_NODE = Message(
    "the range ends at {most} GPUs; the node has {there}", "ask for a smaller range"
)
MEMORY_RANGE_ABOVE_QUOTA = Message(
    "the range of memory ends at {most}; the memory quota of {env} is {quota}",
    "ask for a smaller range",
)
MEMORY_RANGE_ABOVE_GPU = Message(
    "the range of memory ends at {most}; the largest GPU of the node has {total}",
    "ask for a smaller range",
)
MEMORY_RANGE_OVER_UDP = Message(
    "memory cannot grow and shrink over UDP, where each process has a fixed limit",
    "run it on the node itself, or name one size with --memory",
)
ELASTIC_OVER_UDP = Message(
    "an elastic task cannot hold GPUs over UDP",
    "run it on the node itself, or without --elastic",
)
WORKER_WITHOUT_TASK = Message(
    "NODEMGR_WORKER_GPU is set, and the process belongs to no elastic task",
    "start it by `nodemgr run --elastic`, or unset the variable",
)
WORKER_OF_OTHER_GPU = Message(
    "NODEMGR_WORKER_GPU names {gpu}, which is not in the lease of {task}",
    "its leader starts workers on GPUs of the lease alone",
)
NOT_THE_LEADER = Message(
    "the process does not lead an elastic task",
    "only the process that asked for the range speaks for it",
)
RECALLED = Part("{request} waits for it")
RECALLED_FOR_QUOTA = Part(
    "the quota of {env} was lowered to {quota} GPUs, and it may borrow {borrow}"
)
RECALL_EXPIRED = Message(
    "GPU {index} was recalled for {request}, and the task did not leave it within {seconds} s",
    "the task goes on with its other GPUs",
)
OFFER_DECLINED = Part("the task declined the offer")
GPU_WAS_IDLE = Part("it was idle")
GPU_BORROWED = Part("it was idle, and {env} borrows it beyond its quota of {quota}")
BORROWED_LEFT_FOR = Part("the task left it, which it had borrowed, for {request}")
LEFT_FOR = Part("the task left it for {request}")
LOWERED_QUOTA = Part("the lowered quota of {env}")
"""In the place of a request: the reason of a recall."""
LEFT_BY_ITSELF = Part("the task gave it back")
