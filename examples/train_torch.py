"""The same as train.py with PyTorch.

python train_torch.py BATCH_BYTES LARGER_BATCH_BYTES
"""

import sys

import torch


def step(line: str) -> None:
    print(line, flush=True)
    sys.stdin.readline()


def main() -> int:
    batch_bytes, larger_bytes = (int(argument) for argument in sys.argv[1:3])
    step(f"imported torch {torch.__version__} from {torch.__file__}")
    batch = torch.empty(batch_bytes, dtype=torch.uint8, device="cuda")
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    step(f"allocated {batch.nbytes} free {free_bytes} total {total_bytes}")
    try:
        torch.empty(larger_bytes, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        step(f"refused {type(error).__name__}: {str(error).splitlines()[0]}")
        return 0
    step(f"allocated {larger_bytes} more")
    return 1


if __name__ == "__main__":
    sys.exit(main())
