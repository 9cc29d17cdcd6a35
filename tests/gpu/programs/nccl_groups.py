"""Groups of NCCL as an elastic training forms them: `nccl_groups.py alone|two DIRECTORY`.

`alone`: one worker forms a communicator, sums, drops it and forms the next, five times. `two`: two
workers on this GPU form one; NCCL may refuse that. Then each goes on in a group of its own.
"""

import json
import multiprocessing
import os
import socket
import sys
import time

import torch

from client_plugin.training.calls import Broken, CollectiveThread
from client_plugin.training.channel import AgentChannel, GenerationMembers
from client_plugin.training.pytorch.process_groups import TorchGroup, _backend
from tests.support.limits import WAIT_LIMIT_S

GENERATIONS = 5
COUNT = 1_000
WorkerResult = tuple[int, str, float]
"""Its rank, the sum or the refusal, its sum alone."""


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def channel() -> AgentChannel:
    """A worker's connection; its other end stays open, or the process would end."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found = AgentChannel(own, 0)
    found.send(**{"is": "hello"})
    other.detach()
    return found


def sums_alone(agent: AgentChannel, generation: int, directory: str) -> tuple[float, float, float]:
    """The sum in a communicator of one worker, and the seconds for it and for its abort."""
    device = torch.device("cuda", 0)
    store = f"{directory}/alone-{os.getpid()}-{generation}"
    members = GenerationMembers(generation, [0], store)
    caller = CollectiveThread(agent, generation)
    began_s = time.monotonic()

    def summed() -> tuple[object, float]:
        backend = _backend(members, 0, device)
        values = torch.full((COUNT,), float(generation), device=device)
        backend.allreduce([values]).wait()
        torch.cuda.current_stream(device).synchronize()
        return backend, float(values.sum().item())

    backend, total = caller.call(summed)
    formed_s = time.monotonic() - began_s
    began_s = time.monotonic()
    backend.abort()
    caller.leave()
    return total, formed_s, time.monotonic() - began_s


def alone(directory: str) -> None:
    agent = channel()
    for generation in range(1, GENERATIONS + 1):
        total, formed_s, ended_s = sums_alone(agent, generation, directory)
        say(generation=generation, total=total, formed_s=formed_s, ended_s=ended_s)


def one_of_two(rank: int, directory: str, results: "multiprocessing.Queue[WorkerResult]") -> None:
    """The sum of both workers, or the refusal; then the sum of this worker alone."""
    agent, device = channel(), torch.device("cuda", 0)
    members = GenerationMembers(1, [0, 1], f"{directory}/two")
    caller = CollectiveThread(agent, 1)
    group, said = None, ""
    values = torch.full((COUNT,), float(rank + 1), device=device)
    try:
        group = TorchGroup(members, rank, caller, device)
        group.sum([values])
        said = f"sum {float(values.sum().item())}"
    except Broken as error:
        said = f"refused: {error}"
    if group is not None:
        group.close(True)
    total, _, _ = sums_alone(agent, 2, directory)
    results.put((rank, said, total))


def two(directory: str) -> None:
    torch.zeros(1, device="cuda")  # this process holds the lease, which its children join
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[WorkerResult] = context.Queue()
    workers = [context.Process(target=one_of_two, args=(n, directory, results)) for n in range(2)]
    for worker in workers:
        worker.start()
    say(results=sorted(results.get(timeout=WAIT_LIMIT_S) for _ in workers))
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    {"alone": alone, "two": two}[sys.argv[1]](sys.argv[2])
    sys.stdin.readline()
