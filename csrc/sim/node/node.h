/* node.h: the simulated node, one file that every process maps: devices, faults, and the shares of
 * each process.
 *
 * Knows: the file's layout, slots and their life, how a byte is charged and given back. Must not
 * know: CUDA, NVML. The driver, NVML and the control library are its three readers.
 *
 * No lock guards shared words. A process owns a slot by a POSIX record lock on one byte of the
 * file, which the kernel drops at any death. Each sum is one word with the identity of its last
 * operation, and the next process to change the sum first completes that operation (see `tally`).
 * So a process killed or stopped between any two instructions loses no byte and blocks no other.
 */
#ifndef NM_SIM_NODE_H
#define NM_SIM_NODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/node/engine.h"
#include "sim/node/models.h"

/* A symbol that a library exports; all others stay inside it. */
#define NM_SIM_API __attribute__((visibility("default")))

enum {
    NM_SIM_DEVICES = 16,
    NM_SIM_SLOTS = 1024, /* processes that use CUDA at one time */
    NM_SIM_GROUPS = 64,  /* named sets of processes with a peak of their own */
    NM_SIM_NAME_BYTES = 64,
    NM_SIM_DEPOSITS = 256, /* exported objects, of all processes */
    NM_SIM_PARTITIONS = 64,  /* cgroups with limits of their own */
    NM_SIM_CGROUP_DEPTH = 8, /* a process's cgroup, and those above it */
    NM_SIM_CGROUP_PATH_BYTES = 512,
    NM_SIM_INCIDENTS = 64,
};
#define NM_SIM_MEMORY_LIMIT_BYTES (UINT64_C(1) << 40) /* exclusive: a tally has 40 bits for bytes */

/* The NVML list of a process, by NODEMGR_SIM_MODE: compute, graphics or mps. */
typedef enum { NM_SIM_COMPUTE, NM_SIM_GRAPHICS, NM_SIM_MPS } nm_sim_mode;

/* The use of memory. No call names the implicit kinds: a group's peak leaves them out. */
#define NM_SIM_KINDS(X) \
    X(linear, false) \
    X(managed, false) \
    X(pool, false) \
    X(vmm, false) \
    X(array, false) \
    X(graph, false) \
    X(context, true) \
    X(module, true)
#define NM_SIM_KIND_ENUMERATOR(name, implicit) NM_SIM_KIND_##name,
typedef enum { NM_SIM_KINDS(NM_SIM_KIND_ENUMERATOR) NM_SIM_KIND_COUNT } nm_sim_kind;

/* Settings of a device of a running node, live, by any process that may write the file. */
#define NM_SIM_FAULTS(X) \
    X(lost) /* 0 or 1: fallen off the bus */ \
    X(losses) /* how often it fell: a context made before the last fall stays broken */ \
    X(fail_next) /* that many of the next explicit allocations are refused */ \
    X(fail_checkpoints) /* on device 0: that many of the next find no host memory */ \
    X(latency_us) /* each explicit allocation takes that much longer */ \
    X(utilization_percent) /* shown by NVML; NM_SIM_MEASURED: that of the kernels */ \
    X(memory_utilization_percent) \
    X(temperature_celsius) \
    X(power_milliwatts) \
    X(scheduling) /* nm_sim_policy */ \
    X(slice_us) /* a process's turn, by time slicing */ \
    X(wave_ns) /* a kernel's time for as many blocks as the device has multiprocessors */
#define NM_SIM_MEASURED UINT32_MAX
#define NM_SIM_FAULT_FIELD(name) _Atomic uint32_t name;
#define NM_SIM_FAULT_ENUMERATOR(name) NM_SIM_FAULT_##name,
typedef enum { NM_SIM_FAULTS(NM_SIM_FAULT_ENUMERATOR) NM_SIM_FAULT_COUNT } nm_sim_fault;

/* A sum over slots, and its highest value since the last reset, of the living alone. word =
   bytes:40 | slot:10 | sequence:14 of the last operation; peak = resets:24 | bytes:40. */
typedef struct {
    _Atomic uint64_t word;
    _Atomic uint64_t peak;
} nm_sim_tally;

/* One slot's part in a tally. announced = delta:50 (signed) | sequence:14; applied = bytes:50 |
   sequence:14. */
typedef struct {
    _Atomic uint64_t announced;
    _Atomic uint64_t applied;
} nm_sim_share;

/* A slot's sums on one device, in cache lines of their own. Capacity depends on the shares; the
   rest is for readers. */
typedef enum { NM_SIM_IN_MEMORY, NM_SIM_IN_GROUP, NM_SIM_SHARE_COUNT } nm_sim_which;
typedef struct {
    _Alignas(128) nm_sim_share share[NM_SIM_SHARE_COUNT];
    _Atomic uint64_t kind_bytes[NM_SIM_KIND_COUNT];
    _Atomic uint32_t contexts;
} nm_sim_account;

typedef struct {
    unsigned char uuid[16];
    uint32_t pci_bus;
    uint32_t model;        /* a row of models.def */
    uint64_t memory_bytes; /* NVML's total */
    union {
        struct {
            NM_SIM_FAULTS(NM_SIM_FAULT_FIELD)
        };
        _Atomic uint32_t fault[NM_SIM_FAULT_COUNT];
    };
    nm_sim_tally memory;
    nm_sim_tally group[NM_SIM_GROUPS];
    nm_sim_account account[NM_SIM_SLOTS];
    nm_sim_engine engine;
} nm_sim_device;

/* A cgroup's limits (partitions.h). hard_complement: so that zeros mean no limit. */
typedef struct {
    _Atomic uint64_t key;
    _Atomic uint64_t soft_bytes[NM_SIM_DEVICES];
    _Atomic uint64_t hard_complement[NM_SIM_DEVICES];
    char path[NM_SIM_CGROUP_PATH_BYTES];
} nm_sim_partition;

/* Memory that an open export keeps beyond its exporter's end (deposits.h). owner = slot + 1; 0:
 * free. */
typedef struct {
    _Atomic uint32_t owner;
    _Atomic uint32_t device;
    _Atomic uint64_t number; /* of the export; 0: the deposit is not complete */
    _Atomic uint64_t object;
    _Atomic uint64_t bytes;
} nm_sim_deposit;

/* An error of the hardware, which the driver reports by an event. */
typedef struct {
    uint32_t device;
    uint32_t type;
    uint64_t data;
} nm_sim_incident;

typedef struct {
    char magic[8];
    uint32_t layout; /* sizeof this structure: a file of another build is refused */
    uint32_t device_count;
    uint32_t driver_version; /* of CUDA, as 1000 * major + 10 * minor: younger calls are absent */
    uint64_t reserved_bytes; /* of a device's memory, what no client can have */
    uint64_t context_bytes;  /* taken by an empty context */
    uint64_t module_bytes;   /* taken by a loaded module */
    char name[NM_SIM_NAME_BYTES]; /* of the devices; "": those of their models */
    _Atomic uint32_t slots_high; /* no slot at or above this was ever taken */
    _Atomic uint64_t group_key[NM_SIM_GROUPS];
    _Atomic uint32_t slot_taken[NM_SIM_SLOTS]; /* 0: clean; else: maybe alive, maybe to be reaped */
    _Atomic uint32_t slot_group[NM_SIM_SLOTS]; /* index + 1 of the owner's group, 0 for none */
    _Atomic uint32_t slot_mode[NM_SIM_SLOTS];  /* nm_sim_mode */
    /* how often the slot was taken: identifies a reused one */
    _Atomic uint64_t slot_life[NM_SIM_SLOTS];
    _Atomic uint64_t slot_cgroups[NM_SIM_SLOTS][NM_SIM_CGROUP_DEPTH]; /* keys; 0 beyond the last */
    /* suspended.h */
    _Atomic uint32_t slot_state[NM_SIM_SLOTS];
    _Atomic uint32_t slot_inside[NM_SIM_SLOTS];   /* a call is under way */
    _Atomic uint32_t slot_deferred[NM_SIM_SLOTS]; /* operations that have not begun */
    _Atomic uint32_t slot_shares[NM_SIM_SLOTS];   /* 1: exports or imports memory */
    _Atomic uint32_t slot_spoiled[NM_SIM_SLOTS];  /* 1: a restore has failed */
    _Atomic uint64_t slot_host[NM_SIM_SLOTS]; /* an address in the owner's memory; 0: none */
    _Atomic uint64_t slot_host_bytes[NM_SIM_SLOTS]; /* from there, in use since a checkpoint */
    _Atomic uint32_t partitions_high;          /* no partition at or above this was ever set */
    nm_sim_partition partition[NM_SIM_PARTITIONS];
    _Atomic uint32_t incidents; /* raised so far */
    nm_sim_incident incident[NM_SIM_INCIDENTS];
    _Atomic uint64_t exports_made;
    nm_sim_deposit deposit[NM_SIM_DEPOSITS];
    nm_sim_device device[NM_SIM_DEVICES];
} nm_sim_state;

extern const char nm_sim_magic[8];

/* The locked bytes of the file. They lie far above its content: locks and content do not meet. */
enum {
    NM_SIM_LOCK_ADMIN = 1 << 28,  /* the replacer of the file (open file description lock) */
    NM_SIM_LOCK_KEEPER,           /* read-locked by each open control handle (likewise) */
    /* + slot: the caller that changes its state (likewise) */
    NM_SIM_LOCK_SUSPENSION = 3 << 28,
    /* + slot: its owner (POSIX), for a moment its reaper (open file description) */
    NM_SIM_LOCK_SLOT = 1 << 29,
};

/* A mapped node. `slot` is -1 until nm_sim_node_join. */
struct nm_sim_node {
    nm_sim_state *state;
    int descriptor;
    int slot;
};

/* Writes the state file's path to `out`: NODEMGR_SIM_STATE if set, else node.state in the
   directory of this library, else the path in a container. False if it does not fit. */
bool nm_sim_node_find(char *out, size_t size);

/* Maps the file. 0, or an errno: ENOENT, EACCES, EINVAL for a file that is no node of this
 * build, EAGAIN where a process holds a lease on it (so no other has it open). `private_descriptor` asks for a high descriptor; only the driver may ask, and before
 * nm_sim_node_join: moving a descriptor closes one on this file, and any such close drops the
 * process's POSIX locks on it. */
int nm_sim_node_open(nm_sim_node *node, const char *path, bool private_descriptor);

/* Whether the file still is a node of this build: any process may write it. */
bool nm_sim_node_is_there(const nm_sim_node *node);

/* Unmaps; and closes the descriptor, unless this process owns a slot of the file (by another
 * library's descriptor): closing would drop it. */
void nm_sim_node_close(nm_sim_node *node);

/* Takes a free slot for this process, until it dies or execs. 0, or EAGAIN when all are taken. */
int nm_sim_node_join(nm_sim_node *node, const char *group);

/* Charges bytes to this process. False, with nothing changed, where the device has no room.
 * Callers serialise calls per process (a slot's operations are numbered). `capacity` leaves out
 * reserved_bytes. */
bool nm_sim_node_charge(nm_sim_node *node, int device, nm_sim_kind kind, uint64_t bytes);
void nm_sim_node_give_back(nm_sim_node *node, int device, nm_sim_kind kind, uint64_t bytes);

/* Clears the slots of the dead; a slot with memory that an open export keeps stays, with that
   memory. Callers serialise calls per process. */
void nm_sim_node_reap(nm_sim_node *node);

/* Before a reader takes the slots' shares of a device: completes the last operation on it, whose
   process may have been stopped. */
void nm_sim_node_settle(nm_sim_node *node, int device);

/* Peaks of a device, and of the groups on it, start again from now. */
void nm_sim_node_reset_peaks(nm_sim_node *node, int device);

/* The PID of a slot's owner as visible here; 0: dead or free; -1: alive in another PID
   namespace. */
int nm_sim_node_owner(const nm_sim_node *node, int slot);

/* The slots that were ever taken. Any process may write the file: no figure of it is an index. */
static inline int nm_sim_slots(const nm_sim_state *state) {
    uint32_t high = atomic_load(&state->slots_high);
    return (int)(high < NM_SIM_SLOTS ? high : NM_SIM_SLOTS);
}
static inline int nm_sim_devices(const nm_sim_state *state) {
    uint32_t count = state->device_count;
    return (int)(count < NM_SIM_DEVICES ? count : NM_SIM_DEVICES);
}
static inline uint64_t nm_sim_capacity(const nm_sim_state *state, int device) {
    return state->device[device].memory_bytes - state->reserved_bytes;
}
static inline const nm_sim_model *nm_sim_model_of(const nm_sim_state *state, int device) {
    return nm_sim_model_at(state->device[device].model);
}
static inline const char *nm_sim_name(const nm_sim_state *state, int device) {
    return state->name[0] ? state->name : nm_sim_model_of(state, device)->name;
}
static inline uint64_t nm_sim_tally_bytes(nm_sim_tally *tally) {
    return atomic_load(&tally->word) >> 24;
}
static inline uint64_t nm_sim_tally_peak(nm_sim_tally *tally) {
    return atomic_load(&tally->peak) & (NM_SIM_MEMORY_LIMIT_BYTES - 1);
}
static inline uint64_t nm_sim_account_bytes(nm_sim_account *account) {
    return atomic_load(&account->share[NM_SIM_IN_MEMORY].applied) >> 14;
}

/* The key of a group's name (FNV-1a, never 0). */
uint64_t nm_sim_group_key(const char *name);

/* Incidents: a ring in the file. A reader that is slower than the ring misses the oldest.
   ----------------------------------------------------------------------------- */

/* Wakes all waiters. `type` and `data`: as NVML's events have them. */
void nm_sim_incident_raise(const nm_sim_node *node, uint32_t device, uint32_t type, uint64_t data);
/* How many were raised until now. */
uint32_t nm_sim_incidents(const nm_sim_node *node);
/* The incident of this number, if the ring still has it. */
bool nm_sim_incident_at(const nm_sim_node *node, uint32_t number, nm_sim_incident *out);
/* Sleeps until more than `seen` were raised, or the time is over. May return early. */
void nm_sim_incident_wait(const nm_sim_node *node, uint32_t seen, uint64_t timeout_ns);

#endif
