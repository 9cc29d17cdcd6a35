"""The messages of `nodemgr predict`: why there is no prediction, and notes beside one."""

from __future__ import annotations

from .form import Message, Notice, Part

# -- reasons without a prediction --

NO_PREDICTION = Message("no prediction, because {why}")
NO_TRAINING_STEP = Part("the program ended without a backward pass: name one that trains")
TRAINS_ON_PROCESSOR = Part("the program trains on the processor: move the model to `cuda`")
NO_FAKE_FORM = Part("operator {operator} has no form without a GPU: try the program without it")
LAYOUT_NOT_FOLLOWED = Part(
    "operator {operator} makes a tensor with the layout {layout}, whose memory depends on values: "
    "try the program with dense tensors",
)
NOT_FOLLOWED = Part(
    "version {version} of {framework} is not followed here ({error}): try another one"
)
TRAINS_EAGERLY = Part(
    "the program computes gradients outside of tf.function: put the training step into one",
)
NO_UPDATE = Part(
    "the function that computes gradients changes no variable: apply the gradients in it, too",
)
STEP_FAILED_HERE = Part("a training step failed ({error}): try it on the processor")


# -- beside a prediction --

EXPERIMENTAL = Notice(
    "forecasts of TensorFlow's memory are experimental: the margin is 60 %, and where past tasks "
    "ask for more, none is filled in"
)


# -- submit --predict --

SUBMITTED_WITHOUT = Notice("{line}; the job is submitted without a forecast")
