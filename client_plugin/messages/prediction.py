"""The messages of `nodemgr predict`: why there is no prediction, and notes beside one."""

from __future__ import annotations

from .form import Message, Notice, Part

# -- reasons without a prediction --

NO_PREDICTION = Message("no prediction, because {why}")
NO_FRAMEWORK = Part(
    "no import of PyTorch or TensorFlow was seen: name a Python program that trains with one, "
    "and keep the entry of nodemgr in its PYTHONPATH",
)
NO_GPU_USED = Part("the program put no tensor on a GPU: name one that trains on `cuda`")
NO_TRAINING_STEP = Part("the program ended without a backward pass: name one that trains")
TRAINS_ON_PROCESSOR = Part("the program trains on the processor: move the model to `cuda`")
NO_FAKE_FORM = Part("operator {operator} has no form without a GPU: try the program without it")
LAYOUT_NOT_FOLLOWED = Part(
    "operator {operator} makes a tensor with the layout {layout}, whose memory depends on values: "
    "try the program with dense tensors",
)
FRAMEWORK_MISSING = Part(
    "{framework} cannot be imported in this process ({error}): install it here"
)
SHARED_BETWEEN_PROCESSES = Part(
    "the program passes tensors on the GPU to another process, and the memory of several processes "
    "is not added up: measure it on a GPU",
)
PICKLED_UNCONFINED = Part(
    "the program saves tensors on the GPU into memory or by pickle, and without a private view of "
    "the disk they could take the place of a checkpoint: leave --unconfined out, or save by "
    "torch.save to a file",
)
SHARDED = Part(
    "the program shards a model over ranks (a device mesh, or a group of processes as FSDP makes "
    "it), which is not followed: measure it on GPUs",
)
NOT_FOLLOWED = Part(
    "version {version} of {framework} is not followed here ({error}): try another one"
)
TRAINS_EAGERLY = Part(
    "the program computes gradients outside of tf.function: put the training step into one",
)
STEP_IN_LOOP = Part(
    "the training step is in a loop of TensorFlow's graph: call it from a loop of Python"
)
SEVERAL_REPLICAS = Part(
    "the strategy has {count} replicas, and a forecast is of one GPU: name one device for it",
)
SEVERAL_GPUS = Part(
    "the program puts its tensors on {count} GPUs, and a forecast is of one: measure it on GPUs",
)
SIZED_BY_MEMORY = Part(
    "the program sizes its work by the memory of the GPU (mem_get_info, total_memory), so each "
    "GPU model has another figure: name the size yourself, or measure it",
)
NO_UPDATE = Part(
    "the function that computes gradients changes no variable: apply the gradients in it, too",
)
ENDED_EARLY = Part(
    "the command ended with {how} before a training step ({last}): run it by itself first"
)
FORKED_CRASHED = Part(
    "a process that the command forked ended before a training step ({error}): run the command by "
    "itself first",
)
STEP_FAILED_HERE = Part("a training step failed ({error}): try it on the processor")
TOO_SLOW = Part("{seconds} s passed before two training steps ({phase}): allow more with --limit")
NOT_CONFINED = Message(
    "the command cannot be confined here ({error})",
    "--unconfined runs it without a private view of the disk and the network",
)

NOT_WATCHED = Message(
    "the command could not be watched to its end ({error})", "run it by itself first"
)

# -- notes --

FILES_DROPPED = Notice("the command would have written {files}; all of it is dropped")
STAND_INS = Notice(
    "the program asked for {count} value{plural} that only a GPU computes; it got stand-ins",
)
DEPENDS_ON_VALUES = Notice(
    "the memory depends on values of the GPU ({origins}): the program was watched with yes and "
    "with no, and the larger figure counts",
)
OTHER_ANSWER_UNSEEN = Notice(
    "the memory depends on values of the GPU ({origins}), and no time was left to watch the "
    "program with the other answer: allow more with --limit",
)
OTHER_ANSWER_ENDED = Notice(
    "the program asks for values of the GPU ({origins}), and ends before two steps with the other "
    "answer: the figure is of the answer that a sound training gets",
)
UPPER_BOUNDS = Notice("sizes that depend on values were taken at their upper bound ({operators})")
ON_META = Notice(
    "this version of PyTorch makes no fake tensors on `cuda` ({error}): tensors were on `meta`, "
    "and mixed precision was taken as float32",
)
ONE_STEP = Notice("the program made one training step; the memory of later steps may be larger")
COMPILED_BY_XLA = Notice(
    "XLA compiles the step; the memory is that of its operators one by one, and XLA usually needs "
    "less",
)
NO_TIMES = Part("times are not predicted: {line}")
MODELS_MOST = Message("{count} GPU models are named", "name at most {most}")

# -- submit --predict --

PREDICTED = Notice("predicted on {gpu}: memory {memory} and a margin of {margin}, run time {run}")
KNOWN = Notice(
    "{count} earlier run{plural} of this command: {run} is filled in as its expected time"
)
LEARNED = Notice(
    "{count} earlier run{plural} of this command with other numbers: {run} is filled in as its "
    "expected time"
)
KNOWN_OF_MANY = Notice("{count} of {total} commands ran before: their expected times are filled in")
SUBMITTED_WITHOUT = Notice("{line}; the job is submitted without a forecast")
FROM_AND_PREDICT = Message("--predict watches one command", "leave --from out, or --predict")
ONLY_WITH_PREDICT = Message(
    "{option} is about a command that is watched", "add --predict, or leave it out"
)

# -- figures --

UNKNOWN_RUN_TIME = Part("unknown without the number of steps (--steps)")
PHASES = Part("seen: {seen}; not seen, and not in the figure: {unseen}")
RUNS_NEED_STEPS = Part("run times need the number of steps of the whole run: name it with --steps")

OPERATIONS_OF_STEP = Part("{billions} x 10^9 in a step")
MEMORY_AND_CONTEXT = Part("{size} and the GPU's context")
