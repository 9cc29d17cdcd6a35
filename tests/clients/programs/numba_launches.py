"""numba-cuda as its users write it: kernels in streams, events, copies.

Cells import it. Must not know: on what it runs. A kernel's result is not looked at.
"""

import numpy
from numba import cuda

ROUNDS = 30
SENT = numpy.arange(4096, dtype=numpy.float32)

state = {}


@cuda.jit
def double(values):
    index = cuda.grid(1)
    if index < values.size:
        values[index] *= 2


def launch():
    if "values" not in state:
        state["values"] = cuda.to_device(SENT)
    double[16, 256](state["values"])


def synchronize():
    cuda.synchronize()


def keep():
    state["kept"] = cuda.to_device(SENT)


def is_kept():
    return bool((state["kept"].copy_to_host() == SENT).all())


def work():
    """The results of a program that launches 3 * ROUNDS times."""
    keep()
    one, other = cuda.stream(), cuda.stream()
    begin, end, event = cuda.event(), cuda.event(), cuda.event()
    begin.record(one)
    values = cuda.to_device(SENT, stream=one)
    for _ in range(ROUNDS):
        double[16, 256, one](values)
        event.record(one)
        event.wait(other)
        double[16, 256, other](values)
        launch()
    end.record(other)
    end.synchronize()
    synchronize()
    took = cuda.event_elapsed_time(begin, end) > 0
    return {"launches": 3 * ROUNDS, "in_order": took, "same_bytes": is_kept()}
