/* suspended.c: see suspended.h. The charges are moved in node.c. */
#include "sim/node/suspended.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LOOK_AGAIN_NS 10000000

int nm_sim_slot_of(nm_sim_node *node, int pid) {
    for (int slot = 0; slot < nm_sim_slots(node->state); slot++) {
        if (atomic_load(&node->state->slot_taken[slot]) && nm_sim_node_owner(node, slot) == pid)
            return slot;
    }
    return -1;
}

/* The descriptor is kept for the next time, since its closing would drop this process's POSIX
   locks. */
int nm_sim_suspension_begin(const nm_sim_node *node, int slot) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", node->descriptor);
    static int kept = -1;
    static pid_t kept_by;
    if (kept < 0 || kept_by != getpid()) {
        kept = open(path, O_RDWR | O_CLOEXEC);
        kept_by = getpid();
    }
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = NM_SIM_LOCK_SUSPENSION + slot,
                         .l_len = 1};
    return kept >= 0 && fcntl(kept, F_OFD_SETLKW, &lock) == 0 ? kept : -1;
}

void nm_sim_suspension_end(int descriptor) {
    struct flock lock = {.l_type = F_UNLCK,
                         .l_whence = SEEK_SET,
                         .l_start = NM_SIM_LOCK_SUSPENSION,
                         .l_len = NM_SIM_SLOTS};
    fcntl(descriptor, F_OFD_SETLK, &lock);
}

static bool is_being_changed(const nm_sim_node *node, int slot) {
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = NM_SIM_LOCK_SUSPENSION + slot,
                         .l_len = 1};
    return fcntl(node->descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool nm_sim_enter(const nm_sim_node *node, bool going_on) {
    nm_sim_state *state = node->state;
    atomic_store(&state->slot_inside[node->slot], 1);
    uint32_t now = atomic_load(&state->slot_state[node->slot]);
    if (now == NM_SIM_RUNNING || (going_on && now == NM_SIM_LOCKING)) return true;
    atomic_store(&state->slot_inside[node->slot], 0);
    return false;
}

void nm_sim_leave(const nm_sim_node *node) {
    atomic_store_explicit(&node->state->slot_inside[node->slot], 0, memory_order_release);
}

void nm_sim_wait_outside(const nm_sim_node *node) {
    _Atomic uint32_t *word = &node->state->slot_state[node->slot];
    uint32_t seen = atomic_load(word);
    if (seen == NM_SIM_RUNNING) return;
    if (seen == NM_SIM_LOCKING && !is_being_changed(node, node->slot)) {
        /* the locker has died */
        atomic_compare_exchange_strong(word, &seen, NM_SIM_RUNNING);
        return;
    }
    struct timespec most = {.tv_nsec = LOOK_AGAIN_NS};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

bool nm_sim_change_process_state(const nm_sim_node *node, int slot, nm_sim_process_state before,
                                 nm_sim_process_state after) {
    _Atomic uint32_t *word = &node->state->slot_state[slot];
    uint32_t seen = before;
    if (!atomic_compare_exchange_strong(word, &seen, after)) return false;
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return true;
}

bool nm_sim_is_quiet(nm_sim_node *node, int slot) {
    nm_sim_schedule schedule;
    struct timespec now;
    if (atomic_load(&node->state->slot_inside[slot]) ||
        atomic_load(&node->state->slot_deferred[slot]))
        return false;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (int device = 0; device < nm_sim_devices(node->state); device++) {
        nm_sim_engine_look(node, device,
                           (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec,
                           &schedule);
        for (uint32_t which = 0; which < schedule.count; which++) {
            const nm_sim_runner *runner = &schedule.runners[which];
            if (nm_sim_runner_slot(runner) == slot && runner->head < runner->tail) return false;
        }
    }
    return true;
}

uint64_t nm_sim_slot_bytes(const nm_sim_node *node, int slot, const nm_sim_kind *kind) {
    uint64_t bytes = 0;
    for (int device = 0; device < nm_sim_devices(node->state); device++) {
        nm_sim_account *account = &node->state->device[device].account[slot];
        for (int each = 0; each < NM_SIM_KIND_COUNT; each++) {
            if (!kind || each == (int)*kind) bytes += atomic_load(&account->kind_bytes[each]);
        }
    }
    return bytes;
}

/* ---- host memory
   ----------------------------------------------------------------------------- */

void nm_sim_reserve_host(const nm_sim_node *node) {
    uint64_t bytes = 0;
    for (int device = 0; device < nm_sim_devices(node->state); device++)
        bytes += node->state->device[device].memory_bytes;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return;
    madvise(base, bytes, MADV_DONTFORK);
    madvise(base, bytes, MADV_DONTDUMP);
    madvise(base, bytes, MADV_HUGEPAGE);
    atomic_store(&node->state->slot_host[node->slot], (uint64_t)(uintptr_t)base);
}

/* One byte of each page: the kernel charges the page to the process that it lies in. */
bool nm_sim_take_host(const nm_sim_node *node, int slot, uint64_t bytes) {
    enum { AT_ONCE = 512 };
    static char zeros[AT_ONCE];
    uint64_t base = atomic_load(&node->state->slot_host[slot]);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    int pid = nm_sim_node_owner(node, slot);
    if (base == 0 || pid <= 0) return true;
    atomic_store(&node->state->slot_host_bytes[slot], bytes);
    for (uint64_t done = 0; done < bytes;) {
        struct iovec from = {.iov_base = zeros}, to[AT_ONCE];
        size_t count = 0;
        for (; count < AT_ONCE && done < bytes; count++, done += page)
            to[count] = (struct iovec){(void *)(uintptr_t)(base + done), 1};
        from.iov_len = count;
        ssize_t written = syscall(SYS_process_vm_writev, pid, &from, 1, to, count, 0);
        if (written < 0 && errno == EPERM) return true;
        if (written != (ssize_t)count) return false;
    }
    return true;
}

void nm_sim_drop_host(const nm_sim_node *node) {
    _Atomic uint64_t *used = &node->state->slot_host_bytes[node->slot];
    uint64_t bytes = atomic_load_explicit(used, memory_order_relaxed);
    if (bytes == 0) return;
    uint64_t base = atomic_load(&node->state->slot_host[node->slot]);
    madvise((void *)(uintptr_t)base, bytes, MADV_DONTNEED);
    atomic_store(used, 0);
}
