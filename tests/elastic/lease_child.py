"""A leader or worker of a test, as a process: one command a line on stdin, one JSON a line out.

    python lease_child.py lead MINIMUM MAXIMUM      a leader: accepted, decline, left, release, gpus
    python lease_child.py work                      a worker: alloc BYTES, visible

A leader prints each event of its lease as it comes.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

DEVICE_BYTES = ctypes.c_size_t


def say(**said: object) -> None:
    print(json.dumps(said), flush=True)


def lead(minimum: int, maximum: int) -> None:
    from client_plugin.elastic.membership import Membership
    from client_plugin.ways.faults import Fault

    try:
        lease = Membership.acquire(minimum, maximum, command=["train"])
    except Fault as fault:
        say(fault=str(fault), code=int(fault.code))
        return
    say(gpus=[gpu.index for gpu in lease.gpus()], token=lease.token)
    commands = sys.stdin.fileno()
    while True:
        for found in select.select([commands, lease.fileno()], [], [])[0]:
            if found == commands:
                words = os.read(commands, 4_096).decode().split()
                if not words:
                    return
                if words[0] == "gpus":
                    say(gpus=[gpu.index for gpu in lease.gpus()])
                else:
                    getattr(lease, words[0])(*words[1:])
                    say(said=words[0])
            else:
                for event in lease.events():
                    gpu = getattr(event, "gpu", None)
                    uuid = getattr(gpu, "uuid", gpu)
                    reason = getattr(event, "reason", None)
                    say(event=type(event).__name__, gpu=uuid, reason=reason)


def work() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    say(init=cuda.cuInit(0), visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    context, pointer, count = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    say(devices=count.value, context=cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    for line in sys.stdin:
        say(alloc=cuda.cuMemAlloc_v2(ctypes.byref(pointer), DEVICE_BYTES(int(line))))


if __name__ == "__main__":
    if sys.argv[1] == "lead":
        lead(int(sys.argv[2]), int(sys.argv[3]))
    else:
        work()
