"""A function of the driver may have several addresses: cuGetProcAddress's need not be dlsym's.

All lead to the hook.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.shim.world import MIB, OUT_OF_MEMORY, World, compiled

# A driver with entries of its own behind cuGetProcAddress, which knows exported names, too.
DRIVER = r"""
#include <stdint.h>
#include <string.h>
#define API __attribute__((visibility("default")))
static uint64_t next = 4096;
API int cuInit(unsigned flags) { (void)flags; return 0; }
API int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API int cuCtxGetDevice(int *device) { *device = 0; return 0; }
API int cuCtxGetCurrent(void **context) { *context = &next; return 0; }
API int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    static const unsigned char known[] = UUID;
    (void)device;
    memcpy(uuid, known, 16);
    return 0;
}
static int entry(uint64_t *address, size_t bytes) { *address = next += 4096; return bytes == 0; }
API int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return entry(address, bytes); }
API int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags,
    int *status)
{
    (void)version, (void)flags, (void)status;
    *found = strncmp(symbol, "cuMemAlloc", 10) == 0 ? (void *)entry : NULL;
    return *found != NULL ? 0 : 500;
}
"""

PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
typedef int alloc_function(uint64_t *, size_t);
typedef int get_function(const char *, void **, int, uint64_t, int *);
int main(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *found;
    int status;
    uint64_t address;
    ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    get_function *get = (get_function *)dlsym(cuda, "cuGetProcAddress_v2");
    static const char *const names[] = {"cuMemAlloc", "cuMemAlloc_v2"};
    for (int i = 0; i < 2; i++) {
        int result = get(names[i], &found, 13000, 0, &status);
        printf("%d ", result != 0 ? result : ((alloc_function *)found)(&address, 200u << 20));
    }
    printf("%d ", ((alloc_function *)dlsym(cuda, "cuMemAlloc_v2"))(&address, 200u << 20));
    printf("%d\n", ((alloc_function *)dlsym(cuda, "cuMemAlloc_v2"))(&address, 1u << 30));
    fflush(stdout);
    return getchar() == EOF;
}
"""


def test_every_address_of_a_function_is_hooked(env: World, short_path: Path) -> None:
    uuid = bytes.fromhex(env.uuids[0].removeprefix("GPU-").replace("-", ""))
    driver = compiled(DRIVER, "-shared", "-fPIC", f"-DUUID={{{','.join(map(str, uuid))}}}")
    directory = short_path / "driver"
    directory.mkdir()
    (directory / "libcuda.so.1").symlink_to(driver)
    env.environ["LD_LIBRARY_PATH"] = str(directory)
    with subprocess.Popen(
        [compiled(PROGRAM)],
        env=env.environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == f"0 0 0 {OUT_OF_MEMORY}\n"
        assert env.used() == 600 * MIB
