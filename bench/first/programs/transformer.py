"""A small transformer in bf16 that stays resident.

    python transformer.py

Prints a JSON line when it is warm. Each input line is a number of seconds; it trains for them and
prints its steps a second.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

WARM_STEPS, STEPS = 20, 10


def main() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True, device="cuda")
    model = nn.TransformerEncoder(layer, 4)
    batch = torch.randn(16, 256, 512, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    train(WARM_STEPS)
    memory = {"total": torch.cuda.mem_get_info()[1], "reserved": torch.cuda.memory_reserved()}
    print(json.dumps(memory), flush=True)
    for line in sys.stdin:
        began_s, steps = time.perf_counter(), 0
        while time.perf_counter() - began_s < float(line):
            train(STEPS)
            steps += STEPS
        print(json.dumps({"rate": steps / (time.perf_counter() - began_s)}), flush=True)


main()
