/* checkpoints.c: cuCheckpointProcess*: another process's calls wait, and its device memory goes to
 * the host and back.
 *
 * Knows: the states of a process, and the errors of wrong transitions. Must not know: how charges
 * move (suspended.h), nor the bytes, which the simulator keeps on the host anyway.
 *
 * As the driver: a restore that finds no room leaves the process checkpointed for ever (its later
 * restores answer OPERATING_SYSTEM), and a checkpoint takes host memory of the process; without it,
 * the process stays locked. Not simulated: pairs of GPUs for a restore on another device.
 */
#include "sim/driver/driver.h"
#include "sim/node/suspended.h"

enum { SINCE = 12080, LOOK_EVERY_NS = 200000 };

typedef struct {
    unsigned timeout_ms; /* 0: none */
    unsigned reserved0;
    uint64_t reserved1[7];
} lock_arguments;

typedef struct {
    const void *gpu_pairs;
    unsigned gpu_pair_count;
} restore_arguments;

/* ---- one operation at a time
   ----------------------------------------------------------------------------- */

typedef nm_cu_result operation(nm_sim_node *node, int slot, const void *arguments);

static nm_cu_result find(int pid, int *slot) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (nm_driver_version() < SINCE) return NM_CUDA_ERROR_NOT_SUPPORTED;
    if (pid <= 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *slot = nm_sim_slot_of(&nm_the_driver.node, pid);
    return *slot < 0 ? NM_CUDA_ERROR_NOT_INITIALIZED : NM_CUDA_SUCCESS;
}

static nm_cu_result do_once(int pid, const void *arguments, operation *operate) {
    int slot;
    nm_cu_result result = find(pid, &slot);
    if (result != NM_CUDA_SUCCESS) return result;
    static pthread_mutex_t one_thread = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_thread);
    int held = nm_sim_suspension_begin(&nm_the_driver.node, slot);
    result = held < 0 ? NM_CUDA_ERROR_OPERATING_SYSTEM
                      : operate(&nm_the_driver.node, slot, arguments);
    if (held >= 0) nm_sim_suspension_end(held);
    pthread_mutex_unlock(&one_thread);
    return result;
}

static nm_sim_process_state state_of(const nm_sim_node *node, int slot) {
    return (nm_sim_process_state)atomic_load(&node->state->slot_state[slot]);
}

/* A process that has died meanwhile has left its slot, perhaps to another one: nothing is written. */
static nm_cu_result changed(const nm_sim_node *node, int slot, nm_sim_process_state before,
                            nm_sim_process_state after) {
    return nm_sim_change_process_state(node, slot, before, after) ? NM_CUDA_SUCCESS
                                                                  : NM_CUDA_ERROR_NOT_INITIALIZED;
}

static void sleep_ns(uint64_t span_ns) {
    struct timespec span = {.tv_sec = (time_t)(span_ns / 1000000000),
                            .tv_nsec = (long)(span_ns % 1000000000)};
    nanosleep(&span, NULL);
}

/* ---- the operations
   ----------------------------------------------------------------------------- */

/* No call and no work is under way, and none can begin. */
static bool try_to_lock(nm_sim_node *node, int slot) {
    if (!nm_sim_is_quiet(node, slot) ||
        !nm_sim_change_process_state(node, slot, NM_SIM_LOCKING, NM_SIM_LOCKED))
        return false;
    if (nm_sim_is_quiet(node, slot)) return true;
    nm_sim_change_process_state(node, slot, NM_SIM_LOCKED, NM_SIM_LOCKING);
    return false;
}

static nm_cu_result lock(nm_sim_node *node, int slot, const void *arguments) {
    const lock_arguments *given = arguments;
    nm_sim_process_state state = state_of(node, slot);
    if (state != NM_SIM_RUNNING && state != NM_SIM_LOCKING) return NM_CUDA_ERROR_ILLEGAL_STATE;
    uint64_t until_ns = given && given->timeout_ms
                            ? nm_now_ns() + given->timeout_ms * UINT64_C(1000000)
                            : UINT64_MAX;
    nm_sim_change_process_state(node, slot, NM_SIM_RUNNING, NM_SIM_LOCKING);
    while (!try_to_lock(node, slot)) {
        bool is_gone =
            nm_sim_node_owner(node, slot) == 0 || state_of(node, slot) != NM_SIM_LOCKING;
        if (is_gone || nm_now_ns() >= until_ns) {
            nm_sim_change_process_state(node, slot, NM_SIM_LOCKING, NM_SIM_RUNNING);
            return is_gone ? NM_CUDA_ERROR_NOT_INITIALIZED : NM_CUDA_ERROR_NOT_READY;
        }
        sleep_ns(LOOK_EVERY_NS);
    }
    return NM_CUDA_SUCCESS;
}

/* The time in which a bus moves the process's memory, since `began_ns`. */
static void take_time(const nm_sim_node *node, int slot, uint64_t began_ns) {
    const nm_sim_model *model = nm_sim_model_of(node->state, 0);
    uint64_t until_ns = began_ns + nm_sim_slot_bytes(node, slot, NULL) / model->host_gb_per_s;
    uint64_t now_ns = nm_now_ns();
    if (now_ns < until_ns) sleep_ns(until_ns - now_ns);
}

static bool has_host_memory(nm_sim_node *node, int slot) {
    _Atomic uint32_t *failures = &node->state->device[0].fail_checkpoints;
    uint32_t left = atomic_load(failures);
    while (left > 0) {
        if (atomic_compare_exchange_weak(failures, &left, left - 1)) return false;
    }
    return nm_sim_take_host(node, slot, nm_sim_slot_bytes(node, slot, NULL));
}

static nm_cu_result checkpoint(nm_sim_node *node, int slot, const void *arguments) {
    (void)arguments;
    static const nm_sim_kind managed = NM_SIM_KIND_managed;
    if (state_of(node, slot) != NM_SIM_LOCKED) return NM_CUDA_ERROR_ILLEGAL_STATE;
    if (nm_sim_slot_bytes(node, slot, &managed) > 0 ||
        atomic_load(&node->state->slot_shares[slot]))
        return NM_CUDA_ERROR_NOT_SUPPORTED;
    uint64_t began_ns = nm_now_ns();
    if (!has_host_memory(node, slot)) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    take_time(node, slot, began_ns);
    if (state_of(node, slot) != NM_SIM_LOCKED) return NM_CUDA_ERROR_NOT_INITIALIZED;
    nm_sim_take_out(node, slot);
    return changed(node, slot, NM_SIM_LOCKED, NM_SIM_SUSPENDED);
}

static nm_cu_result restore(nm_sim_node *node, int slot, const void *arguments) {
    const restore_arguments *given = arguments;
    uint64_t began_ns = nm_now_ns();
    if (given && given->gpu_pair_count > 0) return NM_CUDA_ERROR_NOT_SUPPORTED;
    if (state_of(node, slot) != NM_SIM_SUSPENDED) return NM_CUDA_ERROR_ILLEGAL_STATE;
    if (atomic_load(&node->state->slot_spoiled[slot])) return NM_CUDA_ERROR_OPERATING_SYSTEM;
    if (!nm_sim_put_back(node, slot)) {
        atomic_store(&node->state->slot_spoiled[slot], 1);
        return NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    take_time(node, slot, began_ns);
    return changed(node, slot, NM_SIM_SUSPENDED, NM_SIM_LOCKED);
}

/* A caller that was killed within a checkpoint may have taken charges away. */
static nm_cu_result unlock(nm_sim_node *node, int slot, const void *arguments) {
    (void)arguments;
    if (state_of(node, slot) != NM_SIM_LOCKED) return NM_CUDA_ERROR_ILLEGAL_STATE;
    if (!nm_sim_put_back(node, slot)) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    return changed(node, slot, NM_SIM_LOCKED, NM_SIM_RUNNING);
}

/* ---- the calls
   ----------------------------------------------------------------------------- */

NM_CU cuCheckpointProcessLock(int pid, const lock_arguments *arguments) {
    return arguments && arguments->reserved0 ? NM_CUDA_ERROR_INVALID_VALUE
                                             : do_once(pid, arguments, lock);
}
NM_CU cuCheckpointProcessCheckpoint(int pid, const void *arguments) {
    return do_once(pid, arguments, checkpoint);
}
NM_CU cuCheckpointProcessRestore(int pid, const restore_arguments *arguments) {
    return do_once(pid, arguments, restore);
}
NM_CU cuCheckpointProcessUnlock(int pid, const void *arguments) {
    return do_once(pid, arguments, unlock);
}

NM_CU cuCheckpointProcessGetState(int pid, int *out) {
    int slot;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_cu_result result = find(pid, &slot);
    if (result != NM_CUDA_SUCCESS) return result;
    switch (state_of(&nm_the_driver.node, slot)) {
    case NM_SIM_LOCKED: *out = NM_CU_PROCESS_STATE_LOCKED; break;
    case NM_SIM_SUSPENDED: *out = NM_CU_PROCESS_STATE_CHECKPOINTED; break;
    default: *out = NM_CU_PROCESS_STATE_RUNNING; break;
    }
    return NM_CUDA_SUCCESS;
}

/* The main thread: the simulator needs none for a restore. */
NM_CU cuCheckpointProcessGetRestoreThreadId(int pid, int *out) {
    int slot;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_cu_result result = find(pid, &slot);
    if (result == NM_CUDA_SUCCESS) *out = pid;
    return result;
}
