"""An unmodified PyTorch program: import, first use, a product, memory beyond the quota.

The product's value can be checked.
"""

import json
import sys

import torch


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)
    sys.stdin.readline()


def out_of_memory(size_bytes: int) -> str:
    try:
        torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return ""


def main() -> None:
    small_bytes, large_bytes = (int(argument) for argument in sys.argv[1:3])
    say(
        available=torch.cuda.is_available(),
        count=torch.cuda.device_count(),
        initialised=torch.cuda.is_initialized(),
    )
    block = torch.empty(small_bytes, dtype=torch.uint8, device="cuda")
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    say(
        allocated=block.nbytes,
        free=free_bytes,
        total=total_bytes,
        name=torch.cuda.get_device_name(),
    )
    ones = torch.ones(512, 512, device="cuda")
    say(product=float((ones @ ones)[0, 0]))
    say(refused=out_of_memory(large_bytes))
    del block
    again = torch.empty(small_bytes, dtype=torch.uint8, device="cuda")
    say(again=again.nbytes)


main()
