"""One watched training: from the import of torch to two optimizer steps, and what follows them.

The outcome's file is written after the two steps, and anew at the end.

Knows: when a training has shown enough, the form of the outcome. Must not know: how it is started,
how the outcome is printed.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import sys
import threading
import weakref
from contextlib import nullcontext, suppress
from typing import Any, Dict, List, Optional, Set

import torch

from ...messages import prediction as messages
from .. import outcome, planned
from ..caching_allocator import replay
from ..findings import exception_line
from . import device, operator_forms, stubs
from .hybrid import Hybrid
from .later_phases import LaterPhases
from .recorder import Recorder
from .tensor_forms import MetaForm

ENOUGH_STEPS = 2
ENOUGH_BACKWARDS = 3
"""For a training without an optimizer of torch."""
MOST_BACKWARDS = 64
"""With an optimizer that has not stepped yet: gradients are summed over so many passes at most."""
ALONE_STEPS = 16
"""Of one optimizer, while another has stepped once: a resumed training has left that one."""
LAST_PRIORITY = -100
"""Of the handlers at the end of a process of multiprocessing, ours is the last one."""


class TrainingWatch:
    """The counts of one process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.recorder = Recorder(self._note_phase)
        self.hybrid = Hybrid(self.recorder)
        self.steps: Dict[int, int] = {}
        self.parameters: Dict[int, int] = {}
        """Parameter -> its elements, of all optimizers that stepped."""
        self.backwards = 0
        self.has_optimizer = False
        self.saved: List[str] = []
        self.has_saved = False
        self.evaluated: Any = weakref.WeakSet()
        """Modules that were set to evaluation."""
        self.fall_back = ""
        """Why tensors are on `meta`."""
        self._later = LaterPhases(self._time_is_up)
        self._step: Any = None
        """The step whose features count, once two were seen; and the outcome then:"""
        self._early: Dict[str, Any] = {}
        self._writing = threading.Lock()
        self._is_short = False
        """The time was over before a validation was seen to its end."""
        self._is_written = self._is_script = False
        self._has_forked = self._is_forked = False

    def begin(self, is_script: bool = True) -> None:
        """`is_script`: steps and backward passes are counted, and the process is ended here."""
        self._is_script = is_script
        self._note_phase()
        importlib.import_module("torch._dynamo")  # it reads torch.cuda's functions while it loads
        stubs.install(self.hybrid, self._not_saved, self.abstain if is_script else _refuse)
        operator_forms.install()
        self._notice_phases()
        torch.autograd.set_multithreading_enabled(False)  # no thread of its own for each GPU
        self._choose_form()
        self.hybrid.__enter__()
        os.register_at_fork(after_in_child=self._in_child, after_in_parent=self._forked)
        if not is_script:
            return
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(self._stepped)
        self._notice_optimizers(optimizer.Optimizer)
        self._count_backwards()
        self._follow_threads()
        atexit.register(self._ended)
        workers: Any = importlib.import_module("multiprocessing.util")
        workers.register_after_fork(
            self, lambda _self: workers.Finalize(None, self._ended, exitpriority=LAST_PRIORITY)
        )  # no handler of atexit runs there

    def _forked(self) -> None:
        self._has_forked = True

    def _in_child(self) -> None:
        """A child has no use of the GPU that its parent used: it loads data."""
        self._is_forked = True
        self._writing = threading.Lock()
        self.hybrid.is_on = self.hybrid.is_on and not self.recorder.events
        self.path = outcome.own_path(os.path.dirname(self.path))
        if self.hybrid.is_on:
            device.renew_threads()

    def _choose_form(self) -> None:
        """Fake tensors on `cuda`; tensors on `meta` where this version of torch makes none."""
        try:
            device.install()
            device.self_test()
        except Exception as error:
            device.uninstall()
            self.fall_back = exception_line(error)
            form = MetaForm()
            form.install()
            self.hybrid.form = form

    def _not_saved(self, name: str) -> None:
        if name not in self.saved:
            self.saved.append(name)

    def _notice_phases(self) -> None:
        """Checkpoints, and modules that are evaluated."""
        save: Any = torch.save
        train: Any = torch.nn.Module.train

        def saved(*args: Any, **kwargs: Any) -> Any:
            self.has_saved = True
            return save(*args, **kwargs)

        def trained(module: Any, mode: bool = True) -> Any:
            if not mode:
                self.evaluated.add(module)
            return train(module, mode)

        torch.save = saved
        setattr(torch.nn.Module, "train", trained)  # noqa: B010

    def _phases(self) -> Dict[str, Any]:
        """The phases that were seen beside steps. A validation evaluates trained parameters."""
        evaluated = [one for module in self.evaluated for one in module.parameters()]
        is_trained = any(id(one) in self.parameters for one in evaluated)
        return {
            "validation": self.recorder.has_plain_products and is_trained,
            "checkpoint": self.has_saved,
            "batch_shapes": [list(shape) for shape in self.recorder.batches],
        }

    def _notice_optimizers(self, kind: Any) -> None:
        make = kind.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.has_optimizer = True
            make(optimizer, *args, **kwargs)

        kind.__init__ = init

    def _count_backwards(self) -> None:
        """Of `torch.autograd.grad` those calls whose result nothing is derived from."""
        autograd: Any = torch.autograd
        run, derive = autograd.backward, autograd.grad

        def counted(*args: Any, **kwargs: Any) -> None:
            is_inner = torch._C._current_graph_task_id() != -1  # of a checkpointed layer
            run(*args, **kwargs)
            if not is_inner:
                self._ran_backward()

        def derived(*args: Any, **kwargs: Any) -> Any:
            made = derive(*args, **kwargs)
            is_inner = kwargs.get("create_graph") or True in args[4:5]
            if not self.has_optimizer and not is_inner:
                self._ran_backward()
            return made

        autograd.backward, autograd.grad = counted, derived

    def _ran_backward(self) -> None:
        if not self.hybrid.is_on:
            return
        self.backwards += 1
        if self.steps:
            return
        if not self.has_optimizer:
            self.recorder.step_ended()
        enough = MOST_BACKWARDS if self.has_optimizer else ENOUGH_BACKWARDS
        if self.backwards >= enough and not self.recorder.events:
            self._trains_on_processor()
        elif self.backwards >= enough:
            self.finish()
        self._note_phase()

    def _follow_threads(self) -> None:
        """PyTorch's modes are those of one thread: a training in another one enters them itself."""
        run = threading.Thread.run

        def followed(thread: threading.Thread) -> None:
            with self.hybrid if self.hybrid.is_on else nullcontext():
                run(thread)

        setattr(threading.Thread, "run", followed)  # noqa: B010

    def _trains_on_processor(self) -> None:
        """A forked process gives its reason at its end: another may train on a GPU."""
        if not self._is_forked:
            self.abstain(messages.TRAINS_ON_PROCESSOR())

    def _stepped(self, optimizer: Any, *_args: Any) -> None:
        if not self.hybrid.is_on:
            return
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        if not any(one.is_cuda for one in parameters):
            self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
            if self.steps[id(optimizer)] >= ENOUGH_STEPS and not self.recorder.events:
                self._trains_on_processor()
            return
        self.parameters.update((id(one), one.numel()) for one in parameters)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        if isinstance(optimizer, torch.optim.LBFGS):
            self._fill_history(optimizer, parameters)
        is_alone = self.steps[id(optimizer)] >= ALONE_STEPS
        if self._later.is_begun:
            self._stepped_again()
        elif is_alone or all(steps >= ENOUGH_STEPS for steps in self.steps.values()):
            self.recorder.step_ended()
            self._go_on()
        elif len(set(self.steps.values())) == 1:
            self.recorder.step_ended()
            self._write(self.result())
        else:
            self._note_phase()

    def _go_on(self) -> None:
        """The figure stands; it grows where the rest of the program needs more."""
        self._step = self.recorder.last_step or self.recorder.step
        self._later.begin()
        if self._later.is_over:
            self.finish()
        found = self.result()
        if "reason" in found:
            self.abstain(found["reason"])
        self._early = found
        self._write({**found, "goes_on": True, "is_short": True})

    def _stepped_again(self) -> None:
        self.recorder.step_ended()
        self._later.stepped(self._phases()["validation"])
        if self._later.is_over:
            self.finish()

    def _time_is_up(self) -> None:
        """In a thread of its own, while the program goes on."""
        self._is_short = True
        try:
            self._write(self.result())
        except RuntimeError:  # a set grew meanwhile
            self._write({**self._early, "is_short": True})
        _leave()

    def _fill_history(self, optimizer: Any, parameters: List[Any]) -> None:
        """LBFGS keeps two flat tensors of each of its last iterations: two steps made few."""
        made = len(optimizer.state[parameters[0]].get("old_dirs", ()))
        size = sum(one.numel() * one.element_size() for one in parameters)
        missing = optimizer.param_groups[0]["history_size"] - made
        self.recorder.later_bytes = 2 * missing * size
        self.hybrid.bounded.add("the history of LBFGS")

    def _note_phase(self) -> None:
        """The last state that a time limit finds; a result stays."""
        if not self._is_script or self._is_written:
            return
        phase = {"backwards": self.backwards, "on_gpu": bool(self.recorder.events)}
        self._write({"phase": phase, "asked": self.hybrid.shadows.asked.row()})

    def _ended(self) -> None:
        """The script's own end came first."""
        if not self.hybrid.is_on:
            return
        if self._is_written:
            if max(self.steps.values(), default=0) >= ENOUGH_STEPS:  # or of one optimizer alone
                self._write(self.result())
            return
        crash = _crash()
        if self.hybrid.trouble:
            self._write(outcome.abstention(self.hybrid.trouble, is_certain=True))
        elif crash is not None:
            self._crashed(crash)
        elif not self.recorder.events:
            self._abstain_without_gpu()
        elif not self.backwards and not self.steps:
            found = outcome.abstention(messages.NO_TRAINING_STEP())
            self._write({**found, "asked": self.hybrid.shadows.asked.row()})
        else:
            if self.recorder.last_step is None:
                self.recorder.step_ended()
            self._write(self.result())

    def _crashed(self, error: Exception) -> None:
        """The watch reads the end of its own child from its exit code and its stderr."""
        if not self._is_forked:
            self._note_phase()  # with the questions that it asked
        else:
            why = (
                "a process that the command forked ended before a training step "
                f"({exception_line(error)}): run the command by itself first"
            )
            self._write(outcome.abstention(why, is_crash=True))

    def _abstain_without_gpu(self) -> None:
        """Of several processes one that did nothing on a GPU gives no reason."""
        if self.backwards or self.steps:
            self._write(outcome.abstention(messages.TRAINS_ON_PROCESSOR()))
        elif not self._has_forked and not self._is_forked:
            self._write(
                outcome.abstention(
                    "the program put no tensor on a GPU: name one that trains on `cuda`"
                )
            )

    def abstain(self, reason: str) -> None:
        """After two steps no figure is taken back, except by a second GPU."""
        if self._later.is_begun and len(self.hybrid.numbers) <= 1:
            self.finish()
        self._write(outcome.abstention(reason, is_certain=True))
        _leave()

    def finish(self) -> None:
        self._write(self.result())
        _leave()

    def result(self) -> Dict[str, Any]:
        """Of a training on several GPUs the reason why there is none."""
        count = len(self.hybrid.numbers)
        if count > 1:
            return outcome.abstention(
                f"the program puts its tensors on {count} GPUs, and a forecast is of one: measure "
                "it on GPUs",
                is_certain=True,
            )
        return self._result()

    def _result(self) -> Dict[str, Any]:
        use = replay(self.recorder.with_libraries())
        step = self._step or self.recorder.last_step or self.recorder.step
        batch, phases = step.batch, self._phases()
        return {
            "framework": f"torch {torch.__version__} {self.hybrid.form.method}",
            "steps": max(self.steps.values(), default=0 if self.has_optimizer else self.backwards),
            "backwards": self.backwards,
            "live_peak_bytes": use.live_peak_bytes,
            "allocated_peak_bytes": use.allocated_peak_bytes,
            "reserved_peak_bytes": use.reserved_peak_bytes,
            "kinds": step.kinds.elements(),
            "work": step.work.rows(),
            "kernels": step.work.kernels,
            "depth": step.depth,
            "operations": step.work.operations,
            "bytes": step.work.moved_bytes,
            "activation_bytes": step.activation_bytes or 0,
            "parameters": sum(self.parameters.values()),
            "iterations": planned.iterations,
            "batch_size": batch[0] if batch else None,
            "input_elements": math.prod(batch) if batch else None,
            "stand_ins": self.hybrid.shadows.stand_ins,
            "fall_back": self.fall_back,
            "bounded": sorted(self.hybrid.bounded),
            "not_saved": self.saved,
            "asked": self.hybrid.shadows.asked.row(),
            "early_peak_bytes": self._early.get("reserved_peak_bytes", use.reserved_peak_bytes),
            "phases": phases,
            "is_short": self._is_short or len(phases["batch_shapes"]) > 1,
        }

    def _write(self, found: Dict[str, Any]) -> None:
        self._is_written = "phase" not in found
        with self._writing:
            outcome.write(self.path, found)


def _crash() -> Optional[Exception]:
    """The exception that ends this process.

    While handlers of multiprocessing run it is under way, and those of atexit run after it.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error if isinstance(error, Exception) else None


def _refuse(reason: Any) -> None:
    """In a process that is no script of its own."""
    raise RuntimeError(str(reason))


def _leave() -> None:
    """End here: neither handlers of the script nor finalizers run."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a closed stream
            stream.flush()
    os._exit(0)


_sessions: Set[TrainingWatch] = set()


def start(directory: str) -> None:
    """Watch this process; the outcome goes to a file of it in `directory`."""
    session = TrainingWatch(outcome.own_path(directory))
    _sessions.add(session)
    try:
        session.begin()
    except Exception as error:
        reason = messages.NOT_FOLLOWED(framework="PyTorch", version=torch.__version__, error=error)
        session.abstain(reason)
