/* start.c: the start of the driver in a process: cuInit, also of a forked child.
 *
 * Knows: CUDA_VISIBLE_DEVICES, the device gate, fork, the files that keep state of the process.
 * Must not know: that state.
 */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/driver/driver.h"
#include "sim/node/gate.h"
#include "sim/node/partitions.h"
#include "sim/node/suspended.h"
#include "sim/node/visible.h"

/* ---- fork
   ----------------------------------------------------------------------------- */

/* The child has no slot, and the mutex may have been held by another thread. */
static void forget_in_child(void) { atomic_store(nm_ready, 0); }

/* The flag lies on a page that the kernel clears in any child; without such pages, a handler of
   fork() clears it. */
static bool open_ready_flag(void) {
    static bool opened;
    if (opened) return true;
    void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    nm_ready = page;
    opened = madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) == 0 ||
             pthread_atfork(NULL, NULL, forget_in_child) == 0;
    return opened;
}

/* Inherited objects belong to the parent, whose sums must not change. */
static void start_afresh(void) {
    uint32_t epoch = nm_the_driver.epoch, serial = nm_the_driver.serial;
    if (nm_the_driver.node.state) munmap(nm_the_driver.node.state, sizeof(nm_sim_state));
    if (nm_the_driver.node.state && nm_the_driver.node.descriptor >= 0)
        close(nm_the_driver.node.descriptor);
    memset(&nm_the_driver, 0, sizeof nm_the_driver);
    nm_the_driver.node = (nm_sim_node){.descriptor = -1, .slot = -1};
    nm_the_driver.epoch = epoch + 1;
    nm_the_driver.serial = serial;
    nm_objects_reset();
    nm_blocks_reset();
    nm_pools_reset();
    nm_exports_reset();
    nm_timeline_reset();
}

/* ---- cuInit
   ----------------------------------------------------------------------------- */

static nm_cu_result join_node(void) {
    char path[PATH_MAX];
    nm_sim_node *node = &nm_the_driver.node;
    if (!nm_sim_node_find(path, sizeof path) || nm_sim_node_open(node, path, true) != 0)
        return NM_CUDA_ERROR_NO_DEVICE;
    bool shut[NM_SIM_DEVICES] = {false};
    for (int index = 0; index < (int)node->state->device_count; index++)
        shut[index] = nm_gate_is_shut(index);
    nm_the_driver.device_count = nm_visible_devices(
        node->state, shut, getenv("CUDA_VISIBLE_DEVICES"), nm_the_driver.visible);
    if (nm_the_driver.device_count == 0) return NM_CUDA_ERROR_NO_DEVICE;
    if (nm_sim_node_join(node, secure_getenv("NODEMGR_SIM_GROUP")) != 0)
        return NM_CUDA_ERROR_OPERATING_SYSTEM;
    nm_sim_reserve_host(node);
    nm_sim_partition_join(node);
    return NM_CUDA_SUCCESS;
}

static nm_cu_result init_once(void) {
    if (nm_is_ready()) return NM_CUDA_SUCCESS;
    if (!open_ready_flag()) return NM_CUDA_ERROR_OPERATING_SYSTEM;
    start_afresh();
    nm_cu_result result = join_node();
    if (result == NM_CUDA_SUCCESS) atomic_store_explicit(nm_ready, 1, memory_order_release);
    return result;
}

/* In a forked child the mutex may be held by a thread that is not there. The first thread here
   in a process resets it, and the others wait those few instructions. */
static void own_the_mutex(void) {
    static pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic int owner; /* pid; 0: the mutex as it was loaded; -1: being reset */
    int self = (int)getpid(), seen = 0;
    if (atomic_compare_exchange_strong(&owner, &seen, self)) return;
    while (seen != self) {
        if (seen == -1) sched_yield();
        if (seen != -1 && atomic_compare_exchange_strong(&owner, &seen, -1)) {
            nm_mutex = unlocked;
            atomic_store(&owner, self);
        }
        seen = atomic_load(&owner);
    }
}

NM_CU cuInit(unsigned flags) {
    if (flags != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    if (nm_is_ready()) return NM_CUDA_SUCCESS;
    own_the_mutex();
    NM_LOCK();
    nm_cu_result result = init_once();
    NM_UNLOCK();
    return result;
}
