"""The client for programs and notebooks: `import nodemgr_client`.

Importable in every environment of nodemgr, by PYTHONPATH, and from a wheel of its own elsewhere.
Importing it loads the standard library only; without an environment around it, it does nothing.
"""

from nodemgr_progress import nodemgr_progress as progress

__all__ = ["elastic", "predict", "progress"]

_PACKAGE = "_nodemgr_client_plugin"


def predict(model, batch, optimizer=None, loss=None, steps=0):
    """The GPU memory that training `model` (PyTorch or Keras) with `batch` will take.

    No GPU is used, and nothing of `model` and `optimizer` changes. Of PyTorch, two training steps
    are made in a child of this process, on tensors without values; the model is on the processor,
    and is called with `batch`: a tensor, a tuple, or a dict of names. With `loss`, `batch` is
    (inputs, targets) and the step is `loss(model(inputs), targets)`; without it, the `loss` of the
    model's result or its mean. Of Keras, one step is traced: `batch` is (inputs, targets), the
    optimizer and the loss are those of `compile` unless they are named, and a loss is called as
    Keras does it, `loss(targets, model(inputs))`. The whole run has `steps` steps; 0: not known.

    Returns a dict: `memory_bytes` (None: no prediction, and `reason` says why), `features` (what
    the manager makes forecasts of), `reason`, `notes`.

    In an environment the manager gets the features: this task leaves a sample when it ends, if it
    reports its progress.
    """
    roots = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    is_keras = bool(roots & {"keras", "tf_keras"}) and "torch" not in roots
    try:
        notebook = _module("prediction." + ("tensorflow" if is_keras else "pytorch") + ".notebook")
    except ImportError as error:
        framework = "TensorFlow" if is_keras else "PyTorch"
        return _module("prediction.findings").without_framework(framework, error)
    found = notebook.predict(model, batch, optimizer, loss, steps)
    _announce(found["features"])
    return found


def __getattr__(name):
    """`from nodemgr_client import elastic`: the leader of an elastic task learns of it."""
    import os

    if name != "elastic":
        raise AttributeError("module 'nodemgr_client' has no attribute " + repr(name))
    if "NODEMGR_ELASTIC" in os.environ:
        _module("training.channel").announce(os.environ)
    globals()["elastic"] = _elastic
    return _elastic


def _elastic(
    model,
    optimizer,
    dataset,
    global_batch,
    max_per_gpu,
    seed=0,
    epochs=1,
    virtual_workers=0,
    checkpoint=None,
    checkpoint_every_s=60.0,
    **options,
):
    """A training whose number of GPUs may change after any step.

        with elastic(model, optimizer, dataset, global_batch=256, max_per_gpu=32) as run:
            for batch in run:
                loss = step(batch)  # the mean over the samples of `batch`
                run.backward(loss)  # with TensorFlow: run.backward(loss, tape)

    Step k uses the samples [k*B, (k+1)*B) of the epoch's seeded permutation, however many GPUs
    there are; B is `global_batch`. A GPU computes at most `max_per_gpu` samples at once and
    accumulates gradients above it. The last run.backward of a step sums the gradients over all
    GPUs and calls the optimizer, the scheduler and the scaler.

    `virtual_workers`: the batch is divided by this number and not by the number of GPUs; each part
    has its own random numbers and buffers, so that models with dropout or batch statistics do not
    depend on the number of GPUs. 0: not used.
    `checkpoint`: a file that is replaced every `checkpoint_every_s` seconds; a job that starts
    again continues from it.
    `clip_norm`: the largest norm of the summed gradient.
    Options with PyTorch: `scheduler`, `scaler`, `collate`, `loader_workers`, `device`
    (default: the GPU of this worker, where there is one; the model is moved to it on entry).

    Without the leader of an elastic task around it, it trains on one device, with the same results.
    docs/elastic.md has all of it.
    """
    room = _module("training.arguments").framework_of(model)
    return _module("training." + room + ".entry").elastic(
        model,
        optimizer,
        dataset,
        global_batch=global_batch,
        max_per_gpu=max_per_gpu,
        seed=seed,
        epochs=epochs,
        virtual_workers=virtual_workers,
        checkpoint=checkpoint,
        checkpoint_every_s=checkpoint_every_s,
        **options,
    )


_ORDER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from client_plugin.ways import locations
from client_plugin.ways.conversation import Conversation
directory = locations.own_env_dir()
if directory is not None:
    with Conversation(directory + "/socket", float(sys.argv[2])) as talk:
        talk.order("forecast", json.load(sys.stdin))
"""
_ANNOUNCE_S = 5.0


def _announce(features):
    """The manager gets the features with the task's token. Without a manager nothing is said.

    By a process of its own: the packages of this one stay as they are.
    """
    import json
    import os
    import subprocess
    import sys

    token = os.environ.get("NODEMGR_TASK")
    payload = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if features is None or not token or not os.path.isdir(payload + "/client_plugin/ways"):
        return
    command = [sys.executable, "-I", "-S", "-c", _ORDER, payload, str(_ANNOUNCE_S)]
    order = json.dumps({"features": features, "token": token})
    try:
        subprocess.run(
            command,
            input=order.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=2 * _ANNOUNCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return


def _module(name):
    """A module of client_plugin: in the wheel, or beside this directory in an environment."""
    import importlib
    import importlib.util
    import os
    import sys

    if _PACKAGE not in sys.modules:
        here = os.path.dirname(os.path.abspath(__file__))
        folder = os.path.join(here, "_client_plugin")
        if not os.path.isdir(folder):
            folder = os.path.join(os.path.dirname(os.path.dirname(here)), "client_plugin")
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        package = importlib.util.module_from_spec(spec)
        sys.modules[_PACKAGE] = package
        spec.loader.exec_module(package)
    return importlib.import_module(_PACKAGE + "." + name)
