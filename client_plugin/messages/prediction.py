"""The messages of `nodemgr predict`: why there is no prediction, and notes beside one."""

from __future__ import annotations

from .form import COMMAND_LINE, NODE, PROGRAM, Message, Notice, Part

# -- reasons without a prediction --

NO_PREDICTION = Message(PROGRAM, "no prediction, because {why}")
NO_FRAMEWORK = Part(
    PROGRAM,
    "no import of PyTorch or TensorFlow was seen: name a Python program that trains with one, "
    "and keep the entry of nodemgr in its PYTHONPATH",
)
NO_GPU_USED = Part(PROGRAM, "the program put no tensor on a GPU: name one that trains on `cuda`")
NO_TRAINING_STEP = Part(PROGRAM, "the program ended without a backward pass: name one that trains")
TRAINS_ON_PROCESSOR = Part(PROGRAM, "the program trains on the processor: move the model to `cuda`")
NO_FAKE_FORM = Part(
    PROGRAM, "operator {operator} has no form without a GPU: try the program without it"
)
LAYOUT_NOT_FOLLOWED = Part(
    PROGRAM,
    "operator {operator} makes a tensor with the layout {layout}, whose memory depends on values: "
    "try the program with dense tensors",
)
FRAMEWORK_MISSING = Part(
    PROGRAM, "{framework} cannot be imported in this process ({error}): install it here"
)
SHARED_BETWEEN_PROCESSES = Part(
    PROGRAM,
    "the program passes tensors on the GPU to another process, and the memory of several processes "
    "is not added up: measure it on a GPU",
)
PICKLED_UNCONFINED = Part(
    PROGRAM,
    "the program saves tensors on the GPU into memory or by pickle, and without a private view of "
    "the disk they could take the place of a checkpoint: leave --unconfined out, or save by "
    "torch.save to a file",
)
SHARDED = Part(
    PROGRAM,
    "the program shards a model over ranks (a device mesh, or a group of processes as FSDP makes "
    "it), which is not followed: measure it on GPUs",
)
NOT_FOLLOWED = Part(
    PROGRAM, "version {version} of {framework} is not followed here ({error}): try another one"
)
TRAINS_EAGERLY = Part(
    PROGRAM,
    "the program computes gradients outside of tf.function: put the training step into one",
)
STEP_IN_LOOP = Part(
    PROGRAM, "the training step is in a loop of TensorFlow's graph: call it from a loop of Python"
)
SEVERAL_REPLICAS = Part(
    PROGRAM,
    "the strategy has {count} replicas, and a forecast is of one GPU: name one device for it",
)
NO_UPDATE = Part(
    PROGRAM,
    "the function that computes gradients changes no variable: apply the gradients in it, too",
)
ENDED_EARLY = Part(
    PROGRAM, "the command ended with {how} before a training step ({last}): run it by itself first"
)
FORKED_CRASHED = Part(
    PROGRAM,
    "a process that the command forked ended before a training step ({error}): run the command by "
    "itself first",
)
STEP_FAILED_HERE = Part(PROGRAM, "a training step failed ({error}): try it on the processor")
TOO_SLOW = Part(
    PROGRAM, "{seconds} s passed before two training steps ({phase}): allow more with --limit"
)
NOT_CONFINED = Message(
    NODE,
    "the command cannot be confined here ({error})",
    "--unconfined runs it without a private view of the disk and the network",
)

NOT_WATCHED = Message(
    NODE, "the command could not be watched to its end ({error})", "run it by itself first"
)

# -- notes --

FILES_DROPPED = Notice(PROGRAM, "the command would have written {files}; all of it is dropped")
STAND_INS = Notice(
    PROGRAM,
    "the program asked for {count} value{plural} that only a GPU computes; it got stand-ins",
)
UPPER_BOUNDS = Notice(
    PROGRAM, "sizes that depend on values were taken at their upper bound ({operators})"
)
ON_META = Notice(
    PROGRAM,
    "this version of PyTorch makes no fake tensors on `cuda` ({error}): tensors were on `meta`, "
    "and mixed precision was taken as float32",
)
ONE_STEP = Notice(
    PROGRAM, "the program made one training step; the memory of later steps may be larger"
)
COMPILED_BY_XLA = Notice(
    PROGRAM,
    "XLA compiles the step; the memory is that of its operators one by one, and XLA usually needs "
    "less",
)
NO_TIMES = Part(NODE, "times are not predicted: {line}")
MODELS_MOST = Message(COMMAND_LINE, "{count} GPU models are named", "name at most {most}")

# -- submit --predict --

PREDICTED = Notice(
    PROGRAM, "predicted on {gpu}: memory {memory} and a margin of {margin}, run time {run}"
)
SUBMITTED_WITHOUT = Notice(PROGRAM, "{line}; the job is submitted without a forecast")
FROM_AND_PREDICT = Message(
    COMMAND_LINE, "--predict watches one command", "leave --from out, or --predict"
)
ONLY_WITH_PREDICT = Message(
    COMMAND_LINE, "{option} is about a command that is watched", "add --predict, or leave it out"
)

# -- figures --

UNKNOWN_RUN_TIME = Part(PROGRAM, "unknown without the number of steps (--steps)")
RUNS_NEED_STEPS = Part(
    PROGRAM, "run times need the number of steps of the whole run: name it with --steps"
)

OPERATIONS_OF_STEP = Part(PROGRAM, "{billions} x 10^9 in a step")
MEMORY_AND_CONTEXT = Part(NODE, "{size} and the GPU's context")
