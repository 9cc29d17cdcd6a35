"""A training in CuPy, as far as GPUs are concerned.

It imports the framework, holds a batch in device memory, and ends. With the size of a larger batch
it tries that one, too, which is to be too large. Nothing in it knows of nodemgr. Where its input is
a pipe it does one step at each line; at a terminal, and without input, it does all of them.

    python train.py [BATCH_BYTES [LARGER_BATCH_BYTES]]      (1 GiB, and no larger one)
"""

import sys

import cupy

GIB = 2**30


def step(line: str) -> None:
    print(line, flush=True)
    if not sys.stdin.isatty():
        sys.stdin.readline()


def main() -> int:
    batch_bytes, *larger = map(int, sys.argv[1:3] or [GIB])
    step(f"imported cupy {cupy.__version__} from {cupy.__file__}")
    batch = cupy.cuda.alloc(batch_bytes)
    free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
    step(f"allocated {batch.mem.size} free {free_bytes} total {total_bytes}")
    if not larger:
        step("trained")
        return 0
    try:
        cupy.cuda.alloc(larger[0])
    except cupy.cuda.memory.OutOfMemoryError as error:
        step(f"refused {type(error).__name__}: {error}")
        return 0
    step(f"allocated {larger[0]} more")
    return 1


if __name__ == "__main__":
    sys.exit(main())
