"""The messages of elastic training (`nodemgr_client.elastic`): what a program meets in it."""

from __future__ import annotations

from .form import Message, Notice

# -- the arguments of elastic(...) --

NOT_POSITIVE = Message("elastic: {name} is {value!r}", "it must be a whole number above 0")
DATASET_TOO_SMALL = Message(
    "elastic: the dataset has {samples:d} samples, fewer than the global batch of {batch:d}",
    "use a smaller global_batch, or more data",
)
NO_LENGTH = Message(
    "elastic: a {kind} has no length or no samples by index",
    "use a dataset with __len__ and __getitem__",
)
NO_MODEL = Message(
    "elastic: {kind} is no model of PyTorch or TensorFlow",
    "pass a torch.nn.Module or a keras.Model",
)
TOO_MANY_SHARES = Message(
    "elastic: {workers:d} virtual workers for a global batch of {batch:d}",
    "there must be at least one sample for each",
)
NO_TAPE = Message(
    "elastic: run.backward(loss) without the tape of TensorFlow that recorded the loss",
    "call run.backward(loss, tape)",
)
SPARSE_GRADIENT = Message(
    "elastic: the gradient of {name} is sparse", "use a layer with sparse=False"
)
DEPENDS_ON_SPLIT = Notice(
    "elastic: {layers} depend on how the batch is divided: "
    "virtual_workers=MAX makes results the same with every number of GPUs",
)

# -- the loop --

NO_BACKWARD = Message(
    "elastic: the loop asked for the next batch before run.backward(loss)",
    "call it once for each batch",
)
NO_BATCH = Message(
    "elastic: run.backward(loss) without a batch of the loop",
    "call it once for each batch of `for batch in run`",
)
NOT_ENTERED = Message(
    "elastic: the loop runs outside of its block", "use `with elastic(...) as run`"
)
WRONG_TOTAL = Message(
    "elastic: step {step:d} added {found} samples instead of {expected:d}",
    "all workers must run the same script with the same arguments",
)

# -- a training that is not elastic --

FIT = Message(
    "elastic: model.fit does not divide its batches among workers, so it does not use more than "
    "the GPU of its worker",
    "write the loop with nodemgr_client.elastic, or run it without --elastic",
)
FIT_EACH = Message(
    "elastic: model.fit does not divide its batches among workers, so each of the {size} workers "
    "trains a model of its own",
    "write the loop with nodemgr_client.elastic, or run it without --elastic",
)
FIT_INSIDE = Message(
    "elastic: model.fit inside the block of elastic(...) trains on this worker alone, and its GPUs "
    "stay until it ends",
    "use `for batch in run` and run.backward(loss, tape)",
)

NESTED = Message(
    "elastic: a block inside the block of another one", "end the outer block before it"
)
ENTERED_AGAIN = Message(
    "elastic: the block of this run was entered before", "call elastic(...) for each block"
)
NO_LOSS = Message(
    "elastic: run.backward(loss) with {found}",
    "pass the mean loss of the batch, a tensor of one number",
)
NO_SAMPLE = Message(
    "elastic: the dataset raised StopIteration for sample {sample:d}",
    "__getitem__ must return each sample below the length of the dataset",
)
TRAINED_DIFFER = Message(
    "elastic: requires_grad of the parameters differs between the workers",
    "change it on every worker at the same step",
)
NOT_BUILT = Message(
    "elastic: the model has no variables to train yet",
    "begin it with keras.Input, or call it once before the block",
)
NEWLY_TRAINABLE = Message(
    "elastic: {name} became trainable inside the block",
    "make it trainable before the block, and freeze it inside",
)
COLUMNS_DIFFER = Message(
    "elastic: the arrays of the dataset have {lengths} samples",
    "give arrays of one length",
)
NOT_SAVED = Message(
    "elastic: {path} was not written ({error}); an older file stays as it is",
    "free space there, or name another path",
)

# -- joining --

OTHER_MODEL = Message(
    "elastic: worker {worker:d} has another model, optimizer or plan than worker {root:d}",
    "build the same ones on every worker",
)
PARAMETERS_DIFFER = Notice(
    "elastic: the parameters of worker {worker:d} differed from those of worker {root:d} at step "
    "{step:d}, and were replaced by them; change parameters on every worker alike",
)
AGENT_LOST = Message(
    "elastic: the leader of this task has ended, and this worker ends with it",
    "the first process of the task has the reason",
)

# -- checkpoints --

CHECKPOINT_FAILED = Message(
    "elastic: no checkpoint at {path} ({error}); an older one stays as it is",
    "free space there, or name another path",
)
CHECKPOINT_UNREADABLE = Message(
    "elastic: the checkpoint {path} cannot be read ({error})",
    "remove it to begin at step 0",
)
CHECKPOINT_OF_ANOTHER = Message(
    "elastic: the checkpoint {path} belongs to another model, optimizer or plan",
    "name another path, or remove it to begin at step 0",
)
RESUMED = Notice("elastic: goes on from {path} at step {step:d} of {steps:d}")
