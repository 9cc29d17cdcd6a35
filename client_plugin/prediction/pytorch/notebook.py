"""`nodemgr_client.predict(model, batch, optimizer)`: two steps of this process's own model.

They are made in a child of the process, which has the model by its fork: nothing of the caller's
changes, and the child computes nothing. Knows: the form of a training step. Must not know: the
manager.
"""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from typing import Any, Callable, Dict, Optional

import torch

from ...messages import prediction as messages
from .. import confinement, findings, outcome
from ..watch import Watched
from .session import TrainingWatch

LIMIT_S = 60.0
STEPS = 2


def predict(
    model: Any,
    batch: Any,
    optimizer: Any = None,
    loss: Optional[Callable[[Any, Any], Any]] = None,
    steps: int = 0,
) -> Dict[str, Any]:
    """`memory_bytes`, `features`, `reason`, `notes`; see nodemgr_client.predict."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        confinement.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)
        _answer(writing, lambda watch: _train(watch, model, batch, optimizer, loss))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told, status = _read(pipe.fileno(), child)
    known = {"child": json.loads(told)} if told else {}
    return findings.told(findings.find(Watched(known, status, "", [], ""), LIMIT_S, steps))


def _read(source: int, child: int) -> Any:
    """All that the child writes within the limit, and its end.

    An interrupt (Ctrl-C in the cell) ends the child, too.
    """
    parts = []
    is_whole = False
    try:
        while not is_whole and select.select([source], [], [], LIMIT_S)[0]:
            part = os.read(source, 65_536)
            parts.append(part)
            is_whole = not part
    finally:
        if not is_whole:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return (b"".join(parts), status) if is_whole else (b"", None)


def _answer(writing: int, train: Callable[[TrainingWatch], None]) -> None:
    """In the child. Never returns."""
    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        torch.set_num_threads(1)  # the threads of the parent are not here
        watch = TrainingWatch("")
        try:
            watch.begin(is_script=False)
            train(watch)
            found = watch.result()
        except Exception as error:
            found = outcome.abstention(_why(watch, error), is_certain=True)
        with os.fdopen(writing, "w") as pipe:
            json.dump(found, pipe)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _why(watch: TrainingWatch, error: Exception) -> str:
    if watch.hybrid.trouble:
        return watch.hybrid.trouble
    return messages.STEP_FAILED_HERE(error=findings.exception_line(error))


def _train(
    watch: TrainingWatch,
    model: Any,
    batch: Any,
    optimizer: Any,
    loss: Optional[Callable[[Any, Any], Any]],
) -> None:
    if any(one.is_cuda for one in model.parameters()):
        raise ValueError("the model is on a GPU; call predict before model.cuda()")
    model.to("cuda")
    for _ in range(STEPS):
        value = _loss(model, batch, loss)
        if optimizer is None:
            model.zero_grad(set_to_none=True)
        else:
            optimizer.zero_grad(set_to_none=True)
        value.backward()
        if optimizer is not None:
            optimizer.step()
        del value
        watch.recorder.step_ended()
        watch.backwards += 1
    watch.parameters.update((id(one), one.numel()) for one in model.parameters())
    watch.steps = {0: STEPS}


def _loss(model: Any, batch: Any, loss: Optional[Callable[[Any, Any], Any]]) -> Any:
    from torch.utils._pytree import tree_map

    batch = tree_map(lambda one: one.to("cuda") if torch.is_tensor(one) else one, batch)
    if loss is not None:
        inputs, targets = batch
        return loss(model(inputs), targets)
    if isinstance(batch, dict):
        found = model(**batch)
    elif isinstance(batch, (tuple, list)):
        found = model(*batch)
    else:
        found = model(batch)
    if getattr(found, "loss", None) is not None:
        return found.loss
    return found.float().mean()
