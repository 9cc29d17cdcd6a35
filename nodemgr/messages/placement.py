"""The messages of learned placement: files of weights, traces, training."""

from __future__ import annotations

from client_plugin.messages.form import Message, Notice, Part

WEIGHTS_UNREADABLE = Message(
    "{path}, weights of a learned placement, cannot be read: {error}",
    "name a file of weights; without one the policy is reliable",
)
WEIGHTS_NO_FILE = Message(
    "{path}, weights of a learned placement, is no regular file",
    "name a file of weights; without one the policy is reliable",
)
LEARNED_NOT_USED = Message(
    "{path}, weights of a learned placement, is not used: {fault}",
    "train again, or export it again; until then the policy is reliable",
)
LEARNED_TOO_LARGE = Part("it is larger than {limit_bytes} bytes")
WEIGHTS_CUT = Part("it is no JSON; it may be cut")
WEIGHTS_VERSION = Part("its schema version is {found}, not {expected}")
WEIGHTS_KIND = Part("its network is {found}, not {expected}")
WEIGHTS_SHAPE = Part("its shapes fit no network")
WEIGHTS_NUMBER = Part("one of its weights is no finite number")
WEIGHTS_TRAINED = Part("its account of the training is no JSON")
WEIGHTS_CHECKSUM = Part("its checksum is wrong")
RATE_NOT_FINITE = Message(
    "learned placement got a failure rate that is no finite number",
    "the policy reliable chooses instead",
)
FORWARD_PASS_FAILED = Message(
    "the forward pass of learned placement gave no finite scores",
    "train again; the policy reliable chooses instead",
)
TRACE_UNREADABLE = Message(
    "{path}, a trace, cannot be read: {error}", "name a CSV file, packed (.gz) or not"
)
TRACE_EMPTY = Message("{path}, a trace, has no job", "name a file with jobs")
TRACE_ROW = Message(
    "{path}, a trace, has no job in line {number}",
    "each line needs timestamp (ISO 8601), duration (seconds) and num_gpus",
)
TRACE_DURATION = Message(
    "{path}, a trace, has a job of {seconds} seconds in line {number}",
    "durations are 0 seconds to a year",
)
TRACE_GPUS = Message(
    "{path}, a trace, has a job on {gpus} GPUs in line {number}", "a job needs 1 or more"
)
TRACE_TOO_WIDE = Message(
    "{path}, a trace, has only jobs that need more than {gpus} GPUs",
    "name a larger cluster (--gpus)",
)
BAD_CLUSTER = Message(
    "no cluster can be simulated with {text}",
    "1 to 1000 GPUs; parts of 0 to 1; rates and times that are finite and not below 0",
)
BAD_JOB = Message(
    "job {number} of the batch needs {job_gpus} GPUs of a cluster of {gpus}",
    "a job needs 1 to {gpus} GPUs and a time above 0",
)
TRAINING_NEEDS_TORCH = Message(
    "the training of placements needs the extra `torch`",
    "{install}",
)
ANOTHER_CHECKPOINT = Message(
    "{path} is the checkpoint of a training with other options",
    "give its options to go on with it, --restart to drop it, or another --out",
)
NAME_TAKEN = Message(
    "{path} is the name of another file of the training",
    "name the weights NAME.json; .csv, .png, .checkpoint and .new stand beside them",
    code="usage",
)
CHECKPOINT_DAMAGED = Message(
    "{path} is no checkpoint of a training",
    "name that of a stopped training; `train --restart` begins anew",
)
TRACE_OR_HISTORY = Message(
    "--trace and --history both name the jobs", "give one of them", code="usage"
)
NO_HISTORY = Message(
    "no job with GPUs has ended well on this node", "name a trace (--trace), or neither"
)
FILE_NOT_WRITTEN = Message("{path}: {error}", "name a file in a directory that you may write to")
TRAINING_STOPPED = Notice(
    "stopped after {done} of {rounds} rounds; the same command goes on from there"
)
WEIGHTS_WRITTEN = Notice("weights: {path}; learning curve: {csv}")
WEIGHTS_EXPORTED = Notice("weights: {path}")
WEIGHTS_IN_USE = Notice(
    "weights: {path}; the policy `learned` of the running manager has them from now on"
)
WEIGHTS_FOR_A_START = Notice(
    "weights: {path}; no manager runs, the next one that starts there has them"
)
WEIGHTS_ELSEWHERE = Notice(
    "weights: {path}; the running manager does not read them, its file is {other}"
)
NO_PICTURE = Notice("no picture {path}: it needs the extra `plots` (matplotlib)")
JOBS_LEFT_OUT = Notice("jobs of the trace that need more than {gpus} GPUs are left out: {count}")
