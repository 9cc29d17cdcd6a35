/* partitions.c: see partitions.h.
 *
 * A charge comes first and the check after it, which keeps a limit exact without a lock: of two
 * processes, the later one in the device's word sees the earlier one's bytes, and takes its own
 * back.
 */
#include "sim/node/partitions.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/node/older.h"

/* Where cgroup v2 is mounted: alone, or beside the first version. */
static const char *const roots[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};

static uint64_t key_of(const struct stat *status) {
    uint64_t key = ((uint64_t)status->st_dev << 48) ^ (uint64_t)status->st_ino;
    return key ? key : 1;
}

/* The line "0::/path" of /proc/self/cgroup, below the root that has a directory of that name. */
static bool own_directory(char *out, size_t size) {
    const char *named = secure_getenv("NODEMGR_SIM_CGROUP");
    if (named && *named) return snprintf(out, size, "%s", named) < (int)size;
    char text[4096];
    int descriptor = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? -1 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0) close(descriptor);
    text[length > 0 ? length : 0] = '\0';
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!line) return false;
    const char *path = strchr(line, '/');
    int bytes = path ? (int)strcspn(path, "\n") : 0;
    for (size_t index = 0; index < sizeof roots / sizeof *roots; index++) {
        int written = snprintf(out, size, "%s%.*s", roots[index], bytes, path ? path : "");
        if (written > 0 && written < (int)size && access(out, F_OK) == 0) return true;
    }
    return false;
}

void nm_sim_partition_join(nm_sim_node *node) {
    _Atomic uint64_t *keys = node->state->slot_cgroups[node->slot];
    char path[PATH_MAX];
    struct stat status;
    dev_t file_system = 0;
    int depth = 0;
    if (!own_directory(path, sizeof path - 3 * NM_SIM_CGROUP_DEPTH)) path[0] = '\0';
    for (; depth < NM_SIM_CGROUP_DEPTH && path[0] && nm_sim_stat(path, &status) == 0; depth++) {
        uint64_t key = key_of(&status);
        bool is_top =
            depth > 0 && (status.st_dev != file_system || key == atomic_load(&keys[depth - 1]));
        if (is_top) break;
        file_system = status.st_dev;
        atomic_store(&keys[depth], key);
        strcat(path, "/..");
    }
    for (; depth < NM_SIM_CGROUP_DEPTH; depth++) atomic_store(&keys[depth], 0);
}

static bool is_in(const nm_sim_state *state, int slot, uint64_t key) {
    for (int depth = 0; depth < NM_SIM_CGROUP_DEPTH; depth++) {
        if (atomic_load(&state->slot_cgroups[slot][depth]) == key) return true;
    }
    return false;
}

static uint64_t used_bytes(nm_sim_node *node, int device, uint64_t key) {
    nm_sim_account *accounts = node->state->device[device].account;
    uint64_t sum = 0;
    nm_sim_node_settle(node, device);
    for (int slot = 0; slot < nm_sim_slots(node->state); slot++) {
        if (atomic_load(&node->state->slot_taken[slot]) && is_in(node->state, slot, key))
            sum += nm_sim_account_bytes(&accounts[slot]);
    }
    return sum;
}

static uint32_t count_of(const nm_sim_state *state) {
    uint32_t high = atomic_load_explicit(&state->partitions_high, memory_order_acquire);
    return high < NM_SIM_PARTITIONS ? high : NM_SIM_PARTITIONS;
}

bool nm_sim_partition_fits(nm_sim_node *node, int device) {
    nm_sim_state *state = node->state;
    if (count_of(state) == 0) return true;
    nm_sim_partition_join(node); /* it may have been moved */
    for (uint32_t index = 0; index < count_of(state); index++) {
        nm_sim_partition *partition = &state->partition[index];
        uint64_t key = atomic_load(&partition->key),
                 hard = ~atomic_load(&partition->hard_complement[device]);
        if (key == 0 || hard == NM_SIM_NO_LIMIT || !is_in(state, node->slot, key)) continue;
        if (used_bytes(node, device, key) <= hard) continue;
        nm_sim_node_reap(node);
        if (used_bytes(node, device, key) > hard) return false;
    }
    return true;
}

/* ---- setting
   ----------------------------------------------------------------------------- */

/* A cgroup that was removed takes its limits along. */
static void drop_removed(nm_sim_partition *partition) {
    struct stat status;
    uint64_t key = atomic_load(&partition->key);
    if (key == 0 || (nm_sim_stat(partition->path, &status) == 0 && key_of(&status) == key)) return;
    for (int device = 0; device < NM_SIM_DEVICES; device++) {
        atomic_store(&partition->soft_bytes[device], 0);
        atomic_store(&partition->hard_complement[device], 0);
    }
    atomic_store(&partition->key, 0);
}

static nm_sim_partition *find(nm_sim_state *state, uint64_t key) {
    for (uint32_t index = 0; index < count_of(state); index++) {
        if (atomic_load(&state->partition[index].key) == key) return &state->partition[index];
    }
    return NULL;
}

static nm_sim_partition *find_or_make(nm_sim_state *state, const char *path, uint64_t key) {
    nm_sim_partition *known = find(state, key);
    for (uint32_t index = 0; !known && index < NM_SIM_PARTITIONS; index++) {
        nm_sim_partition *partition = &state->partition[index];
        drop_removed(partition);
        if (atomic_load(&partition->key) != 0) continue;
        strcpy(partition->path, path);
        atomic_store(&partition->key, key);
        uint32_t high = atomic_load(&state->partitions_high);
        if (high < index + 1) atomic_store(&state->partitions_high, index + 1);
        known = partition;
    }
    return known;
}

/* One administrator at a time sets limits on a node: two at once may take the same place. */
int nm_sim_partition_set(nm_sim_node *node, int device, const char *directory, uint64_t soft_bytes,
                         uint64_t hard_bytes) {
    struct stat status;
    char path[PATH_MAX];
    if (!realpath(directory, path) || nm_sim_stat(path, &status) != 0) return errno;
    if (!S_ISDIR(status.st_mode)) return ENOTDIR;
    if (strlen(path) >= NM_SIM_CGROUP_PATH_BYTES) return ENAMETOOLONG;
    nm_sim_partition *partition = find_or_make(node->state, path, key_of(&status));
    if (!partition) return ENOSPC;
    atomic_store(&partition->soft_bytes[device], soft_bytes);
    atomic_store(&partition->hard_complement[device], ~hard_bytes);
    return 0;
}

int nm_sim_partition_get(nm_sim_node *node, int device, const char *directory,
                         nm_sim_partition_limits *out) {
    struct stat status;
    if (nm_sim_stat(directory, &status) != 0) return errno;
    nm_sim_partition *partition = find(node->state, key_of(&status));
    if (!partition) return ESRCH;
    nm_sim_node_reap(node);
    *out = (nm_sim_partition_limits){
        .soft_bytes = atomic_load(&partition->soft_bytes[device]),
        .hard_bytes = ~atomic_load(&partition->hard_complement[device]),
        .used_bytes = used_bytes(node, device, key_of(&status)),
    };
    return out->soft_bytes == 0 && out->hard_bytes == NM_SIM_NO_LIMIT ? ESRCH : 0;
}
