"""cuda.bindings.driver as its users write it: allocates by several paths.

It prints one line of JSON with the results.

    bindings.py [BYTES]

Must not know: on what it runs. Exit code 0 also where an allocation was refused: the line says so.
"""

import json
import os
import sys

from cuda.bindings import driver


class Refused(Exception):
    pass


def check(answer):
    """The values behind the result code, or Refused."""
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise Refused(code.name)
    return values[0] if len(values) == 1 else values


def by_pool(size, device, stream):
    address = check(driver.cuMemAllocAsync(size, stream))
    check(driver.cuMemFreeAsync(address, stream))
    check(driver.cuStreamSynchronize(stream))


def by_mapping(size, device, stream):
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = int(device)
    flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granule = check(driver.cuMemGetAllocationGranularity(prop, flag))
    size = (size + granule - 1) // granule * granule
    handle = check(driver.cuMemCreate(size, prop, 0))
    address = check(driver.cuMemAddressReserve(size, 0, 0, 0))
    check(driver.cuMemMap(address, size, 0, handle, 0))
    check(driver.cuMemRelease(handle))
    check(driver.cuMemUnmap(address, size))
    check(driver.cuMemAddressFree(address, size))


def by_managing(size, device, stream):
    address = check(driver.cuMemAllocManaged(size, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
    check(driver.cuMemFree(address))


def outcome(path, *arguments):
    try:
        path(*arguments)
    except Refused as refused:
        return str(refused)
    return None


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    stream = check(driver.cuStreamCreate(0))

    sent, back = b"there and back", bytearray(14)
    address = check(driver.cuMemAlloc(size))
    check(driver.cuMemcpyHtoD(address, sent, len(sent)))
    check(driver.cuMemcpyDtoH(back, address, len(sent)))
    free, total = check(driver.cuMemGetInfo())
    seen = {
        "pid": os.getpid(),
        "devices": check(driver.cuDeviceGetCount()),
        "name": check(driver.cuDeviceGetName(128, device)).partition(b"\0")[0].decode(),
        "uuid": check(driver.cuDeviceGetUuid(device)).bytes.hex(),
        "total_bytes": total,
        "device_total_bytes": check(driver.cuDeviceTotalMem(device)),
        "free_bytes": free,
        "same_bytes": bytes(back) == sent,
        "refused": {
            path.__name__: outcome(path, size, device, stream)
            for path in (by_pool, by_mapping, by_managing)
        },
    }
    check(driver.cuMemFree(address))
    seen["free_bytes_after"] = check(driver.cuMemGetInfo())[0]
    print(json.dumps(seen), flush=True)


main()
