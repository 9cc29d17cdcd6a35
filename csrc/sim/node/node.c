/* node.c: charging, giving back, joining and reaping on the file of node.h.
 *
 * Knows: the words of a tally, record locks, the place of the file. Must not know: CUDA, NVML.
 *
 * A change of a tally has three steps. The slot's owner announces (delta, sequence). It settles the
 * operation in the tally's word: that slot's `applied` and the peak get it. Then it puts its own
 * operation into the word by compare-and-swap. So an operation is in the word, in `applied`, or
 * never happened, if a process dies at any point, and the next process can see which.
 */
#include "sim/node/node.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/lost/lost.h"
#include "sim/node/deposits.h"
#include "sim/node/older.h"
#include "sim/node/suspended.h"

#define SEQUENCE_MASK UINT64_C(0x3fff)
#define PEAK_MASK (NM_SIM_MEMORY_LIMIT_BYTES - 1)

const char nm_sim_magic[8] = "nodesim";

/* ---- where the file is
   ----------------------------------------------------------------------------- */

static char library_directory[PATH_MAX];

/* At load, because a path relative to the working directory of that moment means nothing later.
 * The link map keeps the path by which the library was asked for: a symbolic link beside
 * node.state is as good as a copy. */
__attribute__((constructor)) static void remember_library_directory(void) {
    Dl_info info;
    if (!dladdr(&library_directory, &info) || !info.dli_fname || !strchr(info.dli_fname, '/'))
        return;
    size_t used = 0;
    if (info.dli_fname[0] != '/') {
        if (!getcwd(library_directory, sizeof library_directory - 1)) return;
        used = strlen(library_directory);
        library_directory[used++] = '/';
    }
    size_t length = (size_t)(strrchr(info.dli_fname, '/') - info.dli_fname);
    if (used + length >= sizeof library_directory) return;
    memcpy(library_directory + used, info.dli_fname, length);
    library_directory[used + length] = '\0';
}

/* The place of the file in a container of the simulated node, whose libraries lie among those of
   the image. */
static const char in_container[] = "/opt/nodemgr/sim/node.state";

static bool join(char *out, size_t size, const char *directory, const char *name) {
    if (strlen(directory) + strlen(name) >= size) return false;
    strcpy(stpcpy(out, directory), name);
    return true;
}

bool nm_sim_node_find(char *out, size_t size) {
    const char *named = secure_getenv("NODEMGR_SIM_STATE");
    if (named && *named) return join(out, size, named, "");
    if (!join(out, size, library_directory, "/node.state")) return false;
    return access(out, F_OK) == 0 || access(in_container, F_OK) != 0 ||
           join(out, size, in_container, "");
}

/* ---- opening
   ----------------------------------------------------------------------------- */

/* Standard input, output and error stay free even in a process that closed them: fillers take
 * their numbers for the moment of the open. */
static int open_above_standard(const char *path) {
    int fillers[3], count = 0;
    while (count < 3) {
        int filler = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (filler < 0) break;
        if (filler > STDERR_FILENO) {
            close(filler);
            break;
        }
        fillers[count++] = filler;
    }
    /* Not blocked: root of a container may hold a lease on the file. */
    int descriptor = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    int error = errno;
    while (count > 0) close(fillers[--count]);
    errno = error;
    return descriptor;
}

/* Above the low numbers that programs count on. */
static int move_high(int descriptor) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return descriptor;
    /* Below 64: a larger table of descriptors costs a program with threads a kernel's grace
       period, some 10 ms. */
    int lowest = limit.rlim_cur >= 64 ? 50 : (int)(limit.rlim_cur / 2);
    int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, lowest);
    if (moved < 0) return descriptor;
    close(descriptor);
    return moved;
}

static bool has_models(const nm_sim_state *state) {
    for (uint32_t index = 0; index < state->device_count; index++) {
        if (!nm_sim_model_at(state->device[index].model)) return false;
    }
    return true;
}

static bool is_node(const nm_sim_state *state) {
    return memcmp(state->magic, nm_sim_magic, sizeof nm_sim_magic) == 0 &&
           state->layout == sizeof *state && state->device_count >= 1 &&
           state->device_count <= NM_SIM_DEVICES && has_models(state);
}

bool nm_sim_node_is_there(const nm_sim_node *node) { return is_node(node->state); }

int nm_sim_node_open(nm_sim_node *node, const char *path, bool private_descriptor) {
    *node = (nm_sim_node){.descriptor = -1, .slot = -1};
    int descriptor = open_above_standard(path);
    if (descriptor < 0) return errno;
    struct stat status;
    if (nm_sim_fstat(descriptor, &status) != 0 || status.st_size != (off_t)sizeof(nm_sim_state)) {
        /* it is no node, so it has no locks that this could drop */
        close(descriptor);
        return EINVAL;
    }
    void *mapping =
        mmap(NULL, sizeof(nm_sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapping == MAP_FAILED) return errno;
    if (!is_node(mapping)) {
        munmap(mapping, sizeof(nm_sim_state));
        return EINVAL;
    }
    node->state = mapping;
    node->descriptor = private_descriptor ? move_high(descriptor) : descriptor;
    return 0;
}

void nm_sim_node_close(nm_sim_node *node) {
    if (!node->state) return;
    bool ours = false;
    for (int slot = 0; slot < nm_sim_slots(node->state) && !ours; slot++) {
        ours = nm_sim_node_owner(node, slot) == (int)getpid();
    }
    nm_sim_forget(node->state);
    munmap(node->state, sizeof(nm_sim_state));
    if (!ours) close(node->descriptor);
    *node = (nm_sim_node){.descriptor = -1, .slot = -1};
}

/* ---- locks
   ----------------------------------------------------------------------------- */

static int lock_byte(int descriptor, int command, short type, off_t byte, int *pid) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result = fcntl(descriptor, command, &lock);
    if (pid)
        *pid = result != 0 || lock.l_type == F_UNLCK || lock.l_pid == -1 ? 0
               : lock.l_pid == 0                                         ? -1
                                                                         : lock.l_pid;
    return result;
}

/* Asked for an open file description and not for a process, so that the process's own locks show
   as well. */
int nm_sim_node_owner(const nm_sim_node *node, int slot) {
    int pid = 0;
    lock_byte(node->descriptor, F_OFD_GETLK, F_WRLCK, NM_SIM_LOCK_SLOT + slot, &pid);
    return pid;
}

/* ---- tallies
   ----------------------------------------------------------------------------- */

typedef struct {
    const nm_sim_node *node;
    nm_sim_tally *tally;
    nm_sim_account *accounts; /* one per slot */
    nm_sim_which which;       /* of their shares is in it */
    int device;
} nm_sim_sum;

static nm_sim_sum memory_sum(const nm_sim_node *node, int index) {
    nm_sim_device *device = &node->state->device[index];
    return (nm_sim_sum){node, &device->memory, device->account, NM_SIM_IN_MEMORY, index};
}

static nm_sim_sum group_sum(const nm_sim_node *node, int index, uint32_t group) {
    nm_sim_device *device = &node->state->device[index];
    return (nm_sim_sum){node, &device->group[group], device->account, NM_SIM_IN_GROUP, index};
}

/* The part of a dead process's share that stays. A group counts living processes only. */
static uint64_t kept_bytes(const nm_sim_sum *sum, int slot) {
    if (sum->which != NM_SIM_IN_MEMORY) return 0;
    return nm_sim_deposited_bytes(sum->node, slot, sum->device);
}

static uint64_t bytes_of_the_dead(const nm_sim_sum *sum) {
    const nm_sim_state *state = sum->node->state;
    int high = nm_sim_slots(state);
    uint64_t bytes = 0;
    for (int slot = 0; slot < high; slot++) {
        if (!atomic_load(&state->slot_taken[slot]) || nm_sim_node_owner(sum->node, slot) != 0)
            continue;
        uint64_t held = atomic_load(&sum->accounts[slot].share[sum->which].applied) >> 14;
        uint64_t kept = kept_bytes(sum, slot);
        bytes += held > kept ? held - kept : 0;
    }
    return bytes;
}

/* Makes the peak know the sum in `word`, an earlier value of the tally whose operation is in the
 * sums. Shares of the dead do not count, since others may have that room. Only a word that is
 * still there is noted: the process that replaced it has noted it, and the peaks may have been
 * reset since. */
static void note(const nm_sim_sum *sum, uint64_t word) {
    _Atomic uint64_t *peak = &sum->tally->peak;
    uint64_t known = atomic_load(peak);
    while ((word >> 24) > (known & PEAK_MASK)) {
        uint64_t bytes = (word >> 24) - bytes_of_the_dead(sum);
        if (atomic_load(&sum->tally->word) != word || bytes <= (known & PEAK_MASK)) return;
        if (atomic_compare_exchange_strong(peak, &known, (known & ~PEAK_MASK) | bytes)) return;
    }
}

/* Makes the slot of the operation in `word`, an earlier value of the tally, and the peak have
   that operation. */
static void settle(const nm_sim_sum *sum, uint64_t word) {
    nm_sim_share *share = &sum->accounts[(word >> 14) & (NM_SIM_SLOTS - 1)].share[sum->which];
    uint64_t sequence = word & SEQUENCE_MASK;
    uint64_t announced = atomic_load(&share->announced);
    uint64_t applied = atomic_load(&share->applied);
    /* Only on top of its predecessor: the owner may have gone on between the two loads. */
    if ((applied & SEQUENCE_MASK) == ((sequence - 1) & SEQUENCE_MASK) &&
        (announced & SEQUENCE_MASK) == sequence) {
        uint64_t bytes = (applied >> 14) + (uint64_t)((int64_t)announced >> 14);
        atomic_compare_exchange_strong(&share->applied, &applied, (bytes << 14) | sequence);
    }
    note(sum, word);
}

/* The peak from now on: the present sum, and all later ones. */
static void reset_peak(const nm_sim_sum *sum) {
    uint64_t before = atomic_load(&sum->tally->peak), word;
    atomic_store(&sum->tally->peak, (before & ~PEAK_MASK) + PEAK_MASK + 1);
    do settle(sum, word = atomic_load(&sum->tally->word));
    while (atomic_load(&sum->tally->word) != word);
}

/* Adds delta for `slot`; the caller is its owner, or its only reaper. False: above the limit. */
static bool add(const nm_sim_sum *sum, int slot, int64_t delta, uint64_t limit) {
    nm_sim_share *share = &sum->accounts[slot].share[sum->which];
    uint64_t sequence = (atomic_load(&share->applied) + 1) & SEQUENCE_MASK;
    atomic_store_explicit(&share->announced, ((uint64_t)delta << 14) | sequence,
                          memory_order_release);
    uint64_t word = atomic_load(&sum->tally->word), next;
    do {
        settle(sum, word);
        uint64_t bytes = (word >> 24) + (uint64_t)delta;
        /* the announcement stays: without its word it means nothing */
        if (delta > 0 && bytes > limit) return false;
        next = (bytes << 24) | ((uint64_t)slot << 14) | sequence;
    } while (!atomic_compare_exchange_weak(&sum->tally->word, &word, next));
    settle(sum, next);
    return true;
}

/* Takes out the share of a slot without a living owner, except for bytes that exports keep. */
static void drain(const nm_sim_sum *sum, int slot) {
    settle(sum, atomic_load(&sum->tally->word));
    uint64_t bytes = atomic_load(&sum->accounts[slot].share[sum->which].applied) >> 14;
    uint64_t kept = kept_bytes(sum, slot);
    if (bytes > kept) add(sum, slot, -(int64_t)(bytes - kept), 0);
}

void nm_sim_node_settle(nm_sim_node *node, int index) {
    nm_sim_sum memory = memory_sum(node, index);
    settle(&memory, atomic_load(&memory.tally->word));
}

void nm_sim_node_reset_peaks(nm_sim_node *node, int index) {
    nm_sim_sum memory = memory_sum(node, index);
    reset_peak(&memory);
    for (uint32_t group = 0; group < NM_SIM_GROUPS; group++) {
        nm_sim_sum of_group = group_sum(node, index, group);
        reset_peak(&of_group);
    }
}

/* ---- slots
   ----------------------------------------------------------------------------- */

static void forget_suspension(nm_sim_state *state, int slot) {
    atomic_store(&state->slot_state[slot], 0);
    atomic_store(&state->slot_inside[slot], 0);
    atomic_store(&state->slot_deferred[slot], 0);
    atomic_store(&state->slot_shares[slot], 0);
    atomic_store(&state->slot_spoiled[slot], 0);
    atomic_store(&state->slot_host[slot], 0);
    atomic_store(&state->slot_host_bytes[slot], 0);
}

/* The caller holds the slot's lock. */
static void clear_slot(const nm_sim_node *node, int slot) {
    nm_sim_state *state = node->state;
    uint32_t group = atomic_load(&state->slot_group[slot]);
    bool keeps = nm_sim_deposits_settle(node, slot);
    for (int index = 0; index < nm_sim_devices(state); index++) {
        nm_sim_account *account = &state->device[index].account[slot];
        if (group > 0 && group <= NM_SIM_GROUPS) {
            nm_sim_sum of_group = group_sum(node, index, group - 1);
            drain(&of_group, slot);
        }
        nm_sim_sum memory = memory_sum(node, index);
        drain(&memory, slot);
        for (int kind = 0; kind < NM_SIM_KIND_COUNT; kind++)
            atomic_store(&account->kind_bytes[kind], 0);
        atomic_store(&account->contexts, 0);
        nm_sim_engine_leave(&state->device[index].engine, slot);
    }
    atomic_store(&state->slot_group[slot], 0);
    forget_suspension(state, slot);
    if (!keeps) atomic_store(&state->slot_taken[slot], 0);
}

void nm_sim_node_reap(nm_sim_node *node) {
    int high = nm_sim_slots(node->state);
    for (int slot = 0; slot < high; slot++) {
        if (!atomic_load(&node->state->slot_taken[slot]) || nm_sim_node_owner(node, slot) != 0)
            continue;
        if (lock_byte(node->descriptor, F_OFD_SETLK, F_WRLCK, NM_SIM_LOCK_SLOT + slot, NULL) != 0)
            continue;
        clear_slot(node, slot);
        lock_byte(node->descriptor, F_OFD_SETLK, F_UNLCK, NM_SIM_LOCK_SLOT + slot, NULL);
    }
}

uint64_t nm_sim_group_key(const char *name) {
    uint64_t key = UINT64_C(0xcbf29ce484222325);
    while (*name) key = (key ^ (unsigned char)*name++) * UINT64_C(0x100000001b3);
    return key ? key : 1;
}

/* Index + 1; 0 without a named group or with a full table: such a process counts on the device
   alone. */
static uint32_t find_group(nm_sim_state *state, const char *name) {
    if (!name || !*name) return 0;
    uint64_t key = nm_sim_group_key(name);
    for (uint32_t index = 0; index < NM_SIM_GROUPS; index++) {
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&state->group_key[index], &seen, key) || seen == key)
            return index + 1;
    }
    return 0;
}

static nm_sim_mode own_mode(void) {
    const char *named = secure_getenv("NODEMGR_SIM_MODE");
    if (named && strcmp(named, "graphics") == 0) return NM_SIM_GRAPHICS;
    return named && strcmp(named, "mps") == 0 ? NM_SIM_MPS : NM_SIM_COMPUTE;
}

int nm_sim_node_join(nm_sim_node *node, const char *group) {
    nm_sim_state *state = node->state;
    nm_sim_node_reap(node);
    for (int slot = 0; slot < NM_SIM_SLOTS; slot++) {
        /* a living process's, or kept for what a dead one has exported */
        if (atomic_load(&state->slot_taken[slot])) continue;
        if (lock_byte(node->descriptor, F_SETLK, F_WRLCK, NM_SIM_LOCK_SLOT + slot, NULL) != 0)
            continue;
        /* a process died just now: its bytes must never count as this one's */
        if (atomic_load(&state->slot_taken[slot])) {
            lock_byte(node->descriptor, F_SETLK, F_UNLCK, NM_SIM_LOCK_SLOT + slot, NULL);
            continue;
        }
        uint32_t high = atomic_load(&state->slots_high);
        while (high < (uint32_t)slot + 1 &&
               !atomic_compare_exchange_weak(&state->slots_high, &high, (uint32_t)slot + 1)) {
        }
        atomic_store(&state->slot_taken[slot], 1);
        atomic_store(&state->slot_group[slot], find_group(state, group));
        atomic_fetch_add(&state->slot_life[slot], 1);
        node->slot = slot;
        atomic_store(&state->slot_mode[slot], own_mode());
        return 0;
    }
    return EAGAIN;
}

/* ---- charging
   ----------------------------------------------------------------------------- */

#define KIND_IS_IMPLICIT(name, implicit) implicit,
static const bool kind_is_implicit[NM_SIM_KIND_COUNT] = {NM_SIM_KINDS(KIND_IS_IMPLICIT)};

/* False if it counts in none. */
static bool find_group_sum(nm_sim_node *node, int index, nm_sim_kind kind, nm_sim_sum *out) {
    uint32_t group =
        atomic_load_explicit(&node->state->slot_group[node->slot], memory_order_relaxed);
    if (kind_is_implicit[kind] || group == 0) return false;
    *out = group_sum(node, index, group - 1);
    return true;
}

/* For a sum higher than ever: the dead are taken out first, so that not every process has to
   search for them. */
static bool add_up(nm_sim_node *node, const nm_sim_sum *sum, uint64_t bytes, uint64_t limit) {
    uint64_t peak = nm_sim_tally_peak(sum->tally);
    if (add(sum, node->slot, (int64_t)bytes, peak < limit ? peak : limit)) return true;
    nm_sim_node_reap(node);
    return add(sum, node->slot, (int64_t)bytes, limit);
}

bool nm_sim_node_charge(nm_sim_node *node, int index, nm_sim_kind kind, uint64_t bytes) {
    nm_sim_sum memory = memory_sum(node, index), of_group;
    uint64_t capacity = nm_sim_capacity(node->state, index);
    if (bytes > capacity) return false;
    if (!add_up(node, &memory, bytes, capacity)) return false;
    if (find_group_sum(node, index, kind, &of_group)) add_up(node, &of_group, bytes, UINT64_MAX);
    atomic_fetch_add(&memory.accounts[node->slot].kind_bytes[kind], bytes);
    return true;
}

void nm_sim_node_give_back(nm_sim_node *node, int index, nm_sim_kind kind, uint64_t bytes) {
    nm_sim_sum memory = memory_sum(node, index), of_group;
    atomic_fetch_sub(&memory.accounts[node->slot].kind_bytes[kind], bytes);
    if (find_group_sum(node, index, kind, &of_group))
        add(&of_group, node->slot, -(int64_t)bytes, UINT64_MAX);
    add(&memory, node->slot, -(int64_t)bytes, UINT64_MAX);
}

/* ---- memory that is away (suspended.h)
   ----------------------------------------------------------------------------- */

/* The slot's bytes in a sum; of explicit kinds alone in that of a group. */
static uint64_t bytes_in(const nm_sim_sum *sum, int slot) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < NM_SIM_KIND_COUNT; kind++) {
        if (sum->which == NM_SIM_IN_GROUP && kind_is_implicit[kind]) continue;
        bytes += atomic_load(&sum->accounts[slot].kind_bytes[kind]);
    }
    return bytes;
}

static uint64_t charged_in(const nm_sim_sum *sum, int slot) {
    settle(sum, atomic_load(&sum->tally->word));
    return atomic_load(&sum->accounts[slot].share[sum->which].applied) >> 14;
}

/* Charges or gives back so that the slot has `bytes` in the sum. */
static bool set_charge(const nm_sim_sum *sum, int slot, uint64_t bytes, uint64_t limit) {
    uint64_t charged = charged_in(sum, slot);
    return charged == bytes || add(sum, slot, (int64_t)(bytes - charged), limit);
}

static bool find_slot_group(const nm_sim_node *node, int index, int slot, nm_sim_sum *out) {
    uint32_t group = atomic_load(&node->state->slot_group[slot]);
    bool has_one = group > 0 && group <= NM_SIM_GROUPS;
    if (has_one) *out = group_sum(node, index, group - 1);
    return has_one;
}

void nm_sim_take_out(nm_sim_node *node, int slot) {
    for (int index = 0; index < nm_sim_devices(node->state); index++) {
        nm_sim_sum memory = memory_sum(node, index), of_group;
        if (find_slot_group(node, index, slot, &of_group))
            set_charge(&of_group, slot, 0, UINT64_MAX);
        set_charge(&memory, slot, 0, UINT64_MAX);
    }
}

bool nm_sim_put_back(nm_sim_node *node, int slot) {
    nm_sim_node_reap(node);
    for (int index = 0; index < nm_sim_devices(node->state); index++) {
        nm_sim_sum memory = memory_sum(node, index), of_group;
        uint64_t capacity = nm_sim_capacity(node->state, index);
        if (!set_charge(&memory, slot, bytes_in(&memory, slot), capacity)) {
            nm_sim_take_out(node, slot);
            return false;
        }
        if (find_slot_group(node, index, slot, &of_group))
            set_charge(&of_group, slot, bytes_in(&of_group, slot), UINT64_MAX);
    }
    return true;
}

/* ---- incidents
   ----------------------------------------------------------------------------- */

/* The caller holds the control library's mutex; two processes that raise at once may lose one. */
void nm_sim_incident_raise(const nm_sim_node *node, uint32_t device, uint32_t type, uint64_t data) {
    nm_sim_state *state = node->state;
    uint32_t number = atomic_load(&state->incidents);
    state->incident[number % NM_SIM_INCIDENTS] = (nm_sim_incident){device, type, data};
    atomic_store(&state->incidents, number + 1);
    syscall(SYS_futex, &state->incidents, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t nm_sim_incidents(const nm_sim_node *node) {
    return atomic_load(&node->state->incidents);
}

bool nm_sim_incident_at(const nm_sim_node *node, uint32_t number, nm_sim_incident *out) {
    uint32_t raised = nm_sim_incidents(node);
    if (raised - number - 1 >= NM_SIM_INCIDENTS) return false;
    *out = node->state->incident[number % NM_SIM_INCIDENTS];
    return true;
}

void nm_sim_incident_wait(const nm_sim_node *node, uint32_t seen, uint64_t timeout_ns) {
    struct timespec most = {(time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    syscall(SYS_futex, &node->state->incidents, FUTEX_WAIT, seen, &most, NULL, 0);
}
