/* deposits.c: see deposits.h. */
#include "sim/node/deposits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the second file ------------------------------------------------------------------------- */

/* The node's file may have been opened by a relative path: the kernel knows where it is. */
static int open_exports(const nm_sim_node *node) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", node->descriptor);
    ssize_t length = readlink(link, path, sizeof path - sizeof nm_sim_exports_suffix);
    if (length < 0) return -1;
    memcpy(path + length, nm_sim_exports_suffix, sizeof nm_sim_exports_suffix);
    return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

static bool lock_number(int descriptor, int command, uint64_t number, struct flock *lock) {
    *lock = (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)number, .l_len = 1};
    return fcntl(descriptor, command, lock) == 0;
}

int nm_sim_export_open(const nm_sim_node *node, uint64_t *number) {
    struct flock lock;
    int descriptor = open_exports(node);
    bool locked = false, taken = descriptor >= 0;
    while (taken && !locked) { /* taken: by an export of an earlier node in this place */
        *number = atomic_fetch_add(&node->state->exports_made, 1) + 1;
        locked = lock_number(descriptor, F_OFD_SETLK, *number, &lock);
        taken = !locked && (errno == EAGAIN || errno == EACCES);
    }
    if (descriptor >= 0 && !locked) close(descriptor);
    return locked ? descriptor : -1;
}

/* Open where that cannot be known (no descriptor is left, the container does not have the file):
   other processes of the node can. */
bool nm_sim_export_is_open(const nm_sim_node *node, uint64_t number) {
    struct flock lock;
    int descriptor = open_exports(node);
    if (descriptor < 0) return true;
    bool held = !lock_number(descriptor, F_OFD_GETLK, number, &lock) || lock.l_type != F_UNLCK;
    close(descriptor);
    return held;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* The owner is written first and cleared last: a process that dies in between leaves a deposit
   of number 0, which no export keeps. */
int nm_sim_deposit_add(const nm_sim_node *node, uint64_t number, int device, uint64_t object,
                       uint64_t bytes) {
    for (int index = 0; index < NM_SIM_DEPOSITS; index++) {
        nm_sim_deposit *deposit = &node->state->deposit[index];
        uint32_t none = 0, owner = (uint32_t)node->slot + 1;
        if (!atomic_compare_exchange_strong(&deposit->owner, &none, owner)) continue;
        atomic_store(&deposit->device, (uint32_t)device);
        atomic_store(&deposit->object, object);
        atomic_store(&deposit->bytes, bytes);
        atomic_store(&deposit->number, number);
        return index;
    }
    return -1;
}

void nm_sim_deposit_drop(const nm_sim_node *node, int index) {
    if (index < 0) return;
    nm_sim_deposit *deposit = &node->state->deposit[index];
    atomic_store(&deposit->number, 0);
    atomic_store(&deposit->owner, 0);
}

static bool is_of(const nm_sim_deposit *deposit, int slot) {
    return atomic_load(&deposit->owner) == (uint32_t)slot + 1;
}

bool nm_sim_has_deposit(const nm_sim_node *node, int slot) {
    for (int index = 0; index < NM_SIM_DEPOSITS; index++) {
        if (is_of(&node->state->deposit[index], slot)) return true;
    }
    return false;
}

bool nm_sim_deposits_settle(const nm_sim_node *node, int slot) {
    bool left = false;
    for (int index = 0; index < NM_SIM_DEPOSITS; index++) {
        nm_sim_deposit *deposit = &node->state->deposit[index];
        if (!is_of(deposit, slot)) continue;
        uint64_t number = atomic_load(&deposit->number);
        bool open = number != 0 && nm_sim_export_is_open(node, number);
        if (!open) nm_sim_deposit_drop(node, index);
        left = left || open;
    }
    return left;
}

static bool keeps(const nm_sim_deposit *deposit, int slot, int device) {
    return is_of(deposit, slot) && atomic_load(&deposit->number) != 0 &&
           atomic_load(&deposit->device) == (uint32_t)device;
}

uint64_t nm_sim_deposited_bytes(const nm_sim_node *node, int slot, int device) {
    const nm_sim_deposit *deposits = node->state->deposit;
    uint64_t bytes = 0;
    for (int index = 0; index < NM_SIM_DEPOSITS; index++) {
        if (!keeps(&deposits[index], slot, device)) continue;
        bool counted = false; /* two descriptors may keep one object */
        for (int earlier = 0; earlier < index && !counted; earlier++) {
            bool same =
                atomic_load(&deposits[earlier].object) == atomic_load(&deposits[index].object);
            counted = same && keeps(&deposits[earlier], slot, device);
        }
        if (!counted) bytes += atomic_load(&deposits[index].bytes);
    }
    return bytes;
}
