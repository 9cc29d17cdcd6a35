/* driver.c: the process's part of the node: its state, its device ordinals, charging.
 *
 * Must not know: the start of the process (start.c), how memory is allocated or freed.
 */
#include "sim/driver/driver.h"

#include <errno.h>
#include <time.h>

#include "sim/node/partitions.h"
#include "sim/node/suspended.h"

nm_driver nm_the_driver;
pthread_mutex_t nm_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int never_ready;
_Atomic int *nm_ready = &never_ready;
_Thread_local nm_thread nm_this_thread;

/* ---- the mutex
   ----------------------------------------------------------------------------- */

void nm_lock(bool going_on) {
    pthread_mutex_lock(&nm_mutex);
    while (nm_is_ready() && !nm_sim_enter(&nm_the_driver.node, going_on)) {
        pthread_mutex_unlock(&nm_mutex);
        nm_sim_wait_outside(&nm_the_driver.node);
        pthread_mutex_lock(&nm_mutex);
    }
    if (nm_is_ready()) nm_sim_drop_host(&nm_the_driver.node);
}

void nm_unlock(void) {
    if (nm_is_ready()) nm_sim_leave(&nm_the_driver.node);
    pthread_mutex_unlock(&nm_mutex);
}

/* ---- ordinals
   ----------------------------------------------------------------------------- */

int nm_device_index(nm_cu_device ordinal) {
    return ordinal >= 0 && ordinal < nm_the_driver.device_count ? nm_the_driver.visible[ordinal]
                                                                : -1;
}

int nm_ordinal(int device) {
    for (int ordinal = 0; ordinal < nm_the_driver.device_count; ordinal++) {
        if (nm_the_driver.visible[ordinal] == device) return ordinal;
    }
    return -1;
}

/* ---- charging
   ----------------------------------------------------------------------------- */

static bool take_one(_Atomic uint32_t *count) {
    uint32_t left = atomic_load(count);
    while (left > 0) {
        if (atomic_compare_exchange_weak(count, &left, left - 1)) return true;
    }
    return false;
}

void nm_delay(int device) {
    uint32_t microseconds =
        atomic_load_explicit(&nm_device(device)->latency_us, memory_order_relaxed);
    if (microseconds == 0) return;
    struct timespec left = {.tv_sec = microseconds / 1000000,
                            .tv_nsec = microseconds % 1000000 * 1000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

nm_cu_result nm_charge(int device, nm_sim_kind kind, uint64_t bytes) {
    nm_sim_device *shared = nm_device(device);
    if (atomic_load_explicit(&shared->lost, memory_order_relaxed))
        return NM_CUDA_ERROR_DEVICE_UNAVAILABLE;
    bool implicit = kind == NM_SIM_KIND_context || kind == NM_SIM_KIND_module;
    if (!implicit && take_one(&shared->fail_next)) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (!nm_sim_node_charge(&nm_the_driver.node, device, kind, bytes)) {
        nm_exports_settle();
        if (!nm_sim_node_charge(&nm_the_driver.node, device, kind, bytes))
            return NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (nm_sim_partition_fits(&nm_the_driver.node, device)) return NM_CUDA_SUCCESS;
    nm_sim_node_give_back(&nm_the_driver.node, device, kind, bytes);
    return NM_CUDA_ERROR_OUT_OF_MEMORY;
}

void nm_give_back(int device, nm_sim_kind kind, uint64_t bytes) {
    if (bytes > 0) nm_sim_node_give_back(&nm_the_driver.node, device, kind, bytes);
}
