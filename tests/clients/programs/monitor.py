"""nvidia-ml-py as monitors use it: prints one line of JSON of each device's memory and processes.

Must not know: on what it runs.
"""

import json

import pynvml


def device(index):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "total_bytes": memory.total,
        "used_bytes": memory.used,
        "free_bytes": memory.free,
        "processes": {
            p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        },
    }


def main():
    pynvml.nvmlInit()
    devices = [device(index) for index in range(pynvml.nvmlDeviceGetCount())]
    print(
        json.dumps({"driver": pynvml.nvmlSystemGetDriverVersion(), "devices": devices}), flush=True
    )
    pynvml.nvmlShutdown()


main()
