"""Two ranks of one training, run by torchrun: each takes a GPU, then they meet.

Rank 0 prints, and waits for a line.
"""

import json
import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
before = torch.cuda.device_count()
torch.cuda.set_device(rank)
block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
dist.init_process_group("gloo")
met = torch.tensor([rank + 1])
dist.all_reduce(met)
seen = {
    "rank": rank,
    "before": before,
    "count": torch.cuda.device_count(),
    "device": str(block.device),
    "met": met.item(),
}
ranks = [None, None]
dist.all_gather_object(ranks, seen)
if rank == 0:
    print(json.dumps({"ranks": ranks}), flush=True)
    sys.stdin.readline()
dist.barrier()
dist.destroy_process_group()
