"""Mappings are found without a walk over each of their bytes."""

from __future__ import annotations

from collections.abc import Callable

from tests.shim.world import GIB, LINKED_WITH_DRIVER, World, compiled

# A page that an odd address was refused for, then a look at the far end of the mapping.
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include "base/abi.h"
int cuInit(unsigned), cuDevicePrimaryCtxRetain(nm_cu_context *, int);
int cuCtxSetCurrent(nm_cu_context), cuMemRelease(nm_cu_mem_handle);
int cuMemCreate(nm_cu_mem_handle *, size_t, const nm_cu_mem_allocation_prop *, unsigned long long);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
int cuMemMap(uint64_t, size_t, size_t, nm_cu_mem_handle, unsigned long long);
int cuMemUnmap(uint64_t, size_t);
int cuMemRetainAllocationHandle(nm_cu_mem_handle *, void *);
int main(void)
{
    nm_cu_context context;
    nm_cu_mem_handle handle, again;
    nm_cu_mem_allocation_prop prop = {.type = 1, .location = {.type = 1}};
    uint64_t address, bytes = UINT64_C(4) << 30;
    int failed = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context) |
                 cuMemCreate(&handle, bytes, &prop, 0) |
                 cuMemAddressReserve(&address, bytes, 0, 0, 0) |
                 cuMemMap(address, bytes, 0, handle, 0) | cuMemRelease(handle);
    int odd = cuMemUnmap(address + 1, bytes);
    failed |= cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + bytes - 4096));
    failed |= cuMemUnmap(address, bytes);
    printf("%d %d\n", failed, odd != 0);
    return 0;
}
"""


def test_a_refused_unmap_makes_nothing_slow(make_world: Callable[..., World]) -> None:
    """Four billion looks at a table would outlast every patience."""
    env = make_world(limit=8 * GIB)
    assert env.run(compiled(PROGRAM, *LINKED_WITH_DRIVER)).stdout == "0 1\n"
