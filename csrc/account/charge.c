/* charge.c: see charge.h. */
#include "account/charge.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"
#include "client/messages.h"
#include "hooks/interpose.h"

enum { ROW_FREE = -1 }; /* memory of no lease */

/* -- the row of the ledger for a device -- */

static void uuid_text(const nm_cu_uuid *uuid, char out[NM_UUID_BYTES])
{
    const unsigned char *b = uuid->bytes;
    snprintf(out, NM_UUID_BYTES,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

/* The row of a GPU of the lease; else of a GPU of the node, where the environment may hold a
   grant by another task. Without one its limit is 0. */
static int row_of_uuid(const struct nm_lease *lease, const char *uuid)
{
    int row = nm_client_row(lease, uuid);
    for (uint32_t other = 0; row < 0 && other < NM_LEDGER_ROWS; other++)
        if (strcmp(nm_ledger_uuid(&lease->ledger, other), uuid) == 0)
            row = (int)other;
    return row >= 0 ? row : ROW_FREE;
}

static int look_up_row(const struct nm_lease *lease, nm_cu_device device)
{
    nm_cu_uuid uuid;
    char text[NM_UUID_BYTES];
    if (nm_real_cuDeviceGetUuid_v2(&uuid, device) != NM_CUDA_SUCCESS &&
        nm_real_cuDeviceGetUuid(&uuid, device) != NM_CUDA_SUCCESS)
        return ROW_FREE;
    uuid_text(&uuid, text);
    return row_of_uuid(lease, text);
}

/* The row, remembered per device and lease: an ordinal keeps its GPU until the process ends. */
static int row_of_device(const struct nm_lease *lease, nm_cu_device device)
{
    enum { REMEMBERED = 64 };
    static _Atomic uint64_t rows[REMEMBERED]; /* lease number << 8 | row + 1 */
    if (device < 0 || device >= REMEMBERED)
        return device < 0 ? ROW_FREE : look_up_row(lease, device);
    uint64_t known = atomic_load_explicit(&rows[device], memory_order_relaxed);
    if (known >> 8 == lease->number && (known & 0xff) != 0)
        return (int)(known & 0xff) - 1;
    int row = look_up_row(lease, device);
    if (row >= 0)
        atomic_store_explicit(&rows[device], (uint64_t)lease->number << 8 | (uint64_t)(row + 1),
                              memory_order_relaxed);
    return row;
}

nm_cu_device nm_current_device(void)
{
    nm_cu_device device;
    return nm_real_cuCtxGetDevice(&device) == NM_CUDA_SUCCESS ? device : -1;
}

/* Each thread remembers the row of its last context: until a context ends, that one keeps its
   device, and a lease keeps its rows. The loader fixes its place, as it is read at each call. */
static _Thread_local struct {
    uint64_t context;
    uint32_t lease, endings;
    int row;
} seen __attribute__((tls_model("initial-exec")));

static __attribute__((noinline)) int look_up_here(const struct nm_lease *lease, uint64_t context,
                                                  uint32_t endings)
{
    int row = row_of_device(lease, nm_current_device());
    if (row >= 0 && endings % 2 == 0) {
        seen.context = context;
        seen.lease = lease->number;
        seen.endings = endings;
        seen.row = row;
    }
    return row;
}

/* The row of the current context, and that context. */
static inline int row_here(const struct nm_lease *lease, uint32_t endings, uint64_t *context)
{
    nm_cu_context current = NULL;
    nm_real_cuCtxGetCurrent(&current);
    *context = (uintptr_t)current;
    if (*context == seen.context && lease->number == seen.lease && endings == seen.endings)
        return seen.row;
    return look_up_here(lease, *context, endings);
}

int nm_charge_row_here(const struct nm_lease *lease)
{
    uint64_t context;
    return row_here(lease, atomic_load(&nm_contexts_ending), &context);
}

/* -- telling, once -- */

static void size_text(uint64_t bytes, char out[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned unit = bytes >= UINT64_C(1) << 30 ? 3
                    : bytes >= 1u << 20        ? 2
                    : bytes >= 1u << 10        ? 1
                                               : 0;
    snprintf(out, 24, unit == 0 ? "%.0f %s" : "%.2f %s",
             (double)bytes / (double)(UINT64_C(1) << 10 * unit), units[unit]);
}

static bool is_first(_Atomic bool *told)
{
    return !atomic_exchange(told, true);
}

struct shares {
    uint64_t own_bytes, others_bytes, correction_bytes, kept_bytes;
};

/* Reservations that are about to be withdrawn are in the ledger for microseconds, and for longer
 * if the kernel stops their thread in between. The figures are read again, after longer and longer
 * pauses of 0.1 s in all, until they can last. They may stay above the limit, if it was lowered
 * or the driver shows more than was charged. */
static struct shares shares_of(const struct nm_lease *lease, uint32_t row)
{
    enum { LOOKS = 70, LONGER_NS = 40000 };
    struct shares shares = {0};
    for (uint64_t look = 0; look < LOOKS; look++) {
        uint64_t all = nm_ledger_used(&lease->ledger, row);
        shares.own_bytes = nm_ledger_slot_used(&lease->ledger, row, lease->slot);
        shares.correction_bytes = nm_ledger_correction(&lease->ledger, row);
        uint64_t accounted = shares.own_bytes + shares.correction_bytes;
        shares.others_bytes = all > accounted ? all - accounted : 0;
        uint64_t promised = nm_ledger_promised(&lease->ledger, row);
        shares.kept_bytes = promised > all ? promised - all : 0;
        if (accounted + shares.others_bytes <= nm_ledger_limit(&lease->ledger, row))
            break;
        nm_pause_ns(look * LONGER_NS);
    }
    return shares;
}

/* The number by which this program knows the GPU of a row: 0 for cuda:0; -1: not visible to it. */
static int device_of_row(const struct nm_lease *lease, uint32_t row)
{
    int devices = 0;
    if (nm_real_cuDeviceGetCount(&devices) != NM_CUDA_SUCCESS)
        return -1;
    for (int device = 0; device < devices; device++)
        if (row_of_device(lease, device) == (int)row)
            return device;
    return -1;
}

struct gpu_name {
    char text[40];
};

/* "GPU 3 (your 1st)": the row is the GPU's index on the node, which `nodemgr status` shows. */
static struct gpu_name gpu_name_of(const struct nm_lease *lease, uint32_t row)
{
    static const char *const endings[] = {"th", "st", "nd", "rd"};
    struct gpu_name name;
    int place = device_of_row(lease, row) + 1;
    bool regular = place % 10 > 3 || place / 10 % 10 == 1;
    if (place > 0)
        snprintf(name.text, sizeof name.text, "GPU %u (your %d%s)", row, place,
                 endings[regular ? 0 : place % 10]);
    else
        snprintf(name.text, sizeof name.text, "GPU %u", row);
    return name;
}

/* The GPU's memory, where no quota stands before it; else 0. NVML counts more than the driver has
 * for programs, so the limit of a whole GPU may be above this. */
static uint64_t whole_gpu_bytes(const struct nm_lease *lease, uint32_t row)
{
    size_t total_bytes = 0;
    nm_cu_device device = device_of_row(lease, row);
    bool is_known = device >= 0 &&
                    nm_real_cuDeviceTotalMem_v2(&total_bytes, device) == NM_CUDA_SUCCESS;
    return is_known && nm_ledger_limit(&lease->ledger, row) >= total_bytes ? total_bytes : 0;
}

/* More than the task named for itself. False: within that. */
static bool said_over_own(const struct nm_lease *lease, uint32_t row, uint64_t bytes)
{
    char asked[24], own[24], others[24], limit[24];
    uint64_t most = nm_ledger_cap(&lease->ledger, lease->slot), now, used;
    nm_ledger_look(&lease->ledger, row, lease->slot, lease->generation, &now, &used);
    if (most == 0 || (used <= most && bytes <= most - used))
        return false;
    uint64_t held = nm_ledger_slot_used(&lease->ledger, row, lease->slot);
    size_text(bytes, asked);
    size_text(held, own);
    size_text(used > held ? used - held : 0, others);
    size_text(most, limit);
    struct gpu_name gpu = gpu_name_of(lease, row);
    nm_say(NM_MEMORY_OVER_OWN, asked, gpu.text, limit, own, others);
    return true;
}

static void say_over(const struct nm_lease *lease, uint32_t row, uint64_t bytes, const char *env)
{
    char asked[24], own[24], others[24], more[24], limit[24], beyond[256] = "";
    struct shares shares = shares_of(lease, row);
    size_t length = 0;
    size_text(bytes, asked);
    size_text(shares.own_bytes, own);
    size_text(shares.others_bytes, others);
    uint64_t whole_bytes = whole_gpu_bytes(lease, row);
    size_text(whole_bytes > 0 ? whole_bytes : nm_ledger_limit(&lease->ledger, row), limit);
    size_text(shares.kept_bytes, more);
    if (shares.kept_bytes > 0)
        length = (size_t)snprintf(beyond, sizeof beyond, NM_MORE_FOR_NAMED_TASKS, more);
    size_text(shares.correction_bytes, more);
    if (shares.correction_bytes > 0)
        snprintf(beyond + length, sizeof beyond - length, NM_DRIVER_SHOWS_MORE, more);
    struct gpu_name gpu = gpu_name_of(lease, row);
    if (whole_bytes > 0)
        nm_say(NM_MEMORY_OVER_GPU, asked, gpu.text, env, limit, own, others, beyond);
    else
        nm_say(NM_MEMORY_OVER_QUOTA, asked, gpu.text, env, limit, own, others, beyond);
}

static void tell_over(const struct nm_lease *lease, uint32_t row, uint64_t bytes)
{
    static _Atomic bool told;
    if (!is_first(&told))
        return;
    char env[80];
    if (nodemgr_setting("env", env, sizeof env) < 0)
        nm_copy(env, sizeof env, "?");
    if (nm_ledger_limit(&lease->ledger, row) == 0)
        nm_say(NM_GPU_OF_OTHERS, (int)row, env);
    else if (!said_over_own(lease, row, bytes))
        say_over(lease, row, bytes, env);
}

static void tell_lost(const struct nm_lease *lease)
{
    static _Atomic bool told;
    if (lease == NULL ||
        nm_ledger_slot_state(&lease->ledger, lease->slot, lease->generation) != NM_STALLED)
        nm_client_tell_lost();
    else if (is_first(&told))
        nm_say(NM_REFUSED_WHILE_STALLED);
}

/* -- charging -- */

_Atomic uint32_t nm_contexts_ending;
/* this process has had a lease: from now on each allocation is charged */
static _Atomic bool held;

void nm_charge_forget(void)
{
    atomic_store(&held, false);
}

static inline const struct nm_lease *present_lease(bool *lost)
{
    const struct nm_lease *lease = nm_client_lease();
    if (lease != NULL && !atomic_load_explicit(&held, memory_order_relaxed))
        atomic_store_explicit(&held, true, memory_order_relaxed);
    *lost = lease == NULL && atomic_load_explicit(&held, memory_order_relaxed);
    return lease;
}

/* Moves a charge of an earlier lease of this process to the present one. */
static void bring_along(struct nm_charge *charge)
{
    const struct nm_lease *lease = nm_client_lease();
    if (lease == NULL || charge->lease == lease->number)
        return;
    if (nm_ledger_charge(&lease->ledger, (uint32_t)charge->row, lease->slot, lease->generation,
                         charge->bytes) == NM_OK)
        nm_client_discharge(charge->lease, (uint32_t)charge->row, charge->bytes);
    charge->lease = lease->number;
}

static inline bool booked(struct nm_charge *charge, uint32_t lease, uint64_t bytes)
{
    if (charge->bytes != 0)
        bring_along(charge);
    charge->lease = lease;
    charge->bytes += bytes;
    return true;
}

/* The ledger did not accept. If it has the lease as stalled or lost, the client waits for the
   manager. */
static __attribute__((noinline)) bool insist(struct nm_charge *charge, int answer, uint64_t bytes)
{
    uint32_t number;
    if (answer != NM_OVER)
        answer = nm_client_charge((uint32_t)charge->row, bytes, &number);
    if (answer == NM_OK)
        return booked(charge, number, bytes);
    charge->refused_bytes = bytes;
    charge->lost = answer != NM_OVER;
    return false;
}

static inline bool charge_more(struct nm_charge *charge, const struct nm_lease *lease,
                               uint64_t bytes)
{
    int answer = NM_FENCED;
    if (lease != NULL)
        answer = nm_ledger_reserve(&lease->ledger, (uint32_t)charge->row, lease->slot,
                                   lease->generation, bytes);
    return answer == NM_OK ? booked(charge, lease->number, bytes) : insist(charge, answer, bytes);
}

static uint32_t endings_now(void)
{
    return atomic_load_explicit(&nm_contexts_ending, memory_order_relaxed);
}

bool nm_charge_take(struct nm_charge *charge, nm_cu_device device, uint64_t bytes)
{
    bool lost;
    const struct nm_lease *lease = present_lease(&lost);
    *charge =
        (struct nm_charge){.row = ROW_FREE, .lost = lost && device >= 0, .endings = endings_now()};
    if (lease != NULL)
        charge->row = row_of_device(lease, device);
    return !charge->lost && (charge->row < 0 || bytes == 0 || charge_more(charge, lease, bytes));
}

bool nm_charge_take_here(struct nm_charge *charge, uint64_t bytes)
{
    bool lost;
    const struct nm_lease *lease = present_lease(&lost);
    if (lease == NULL)
        return nm_charge_take(charge, lost ? nm_current_device() : -1, bytes);
    *charge = (struct nm_charge){.endings = endings_now()};
    charge->row = row_here(lease, charge->endings, &charge->context);
    return charge->row < 0 || bytes == 0 || charge_more(charge, lease, bytes);
}

bool nm_charge_resize(struct nm_charge *charge, uint64_t bytes)
{
    if (charge->row < 0 || bytes == charge->bytes)
        return true;
    if (bytes > charge->bytes)
        return charge_more(charge, nm_client_lease(), bytes - charge->bytes);
    nm_client_discharge(charge->lease, (uint32_t)charge->row, charge->bytes - bytes);
    charge->bytes = bytes;
    return true;
}

void nm_charge_resize_anyway(struct nm_charge *charge, uint64_t bytes)
{
    const struct nm_lease *lease = nm_client_lease();
    if (nm_charge_resize(charge, bytes) || lease == NULL)
        return;
    if (charge->bytes != 0)
        bring_along(charge);
    if (nm_ledger_charge(&lease->ledger, (uint32_t)charge->row, lease->slot, lease->generation,
                         bytes - charge->bytes) != NM_OK)
        return;
    charge->lease = lease->number;
    charge->bytes = bytes;
}

void nm_charge_give_back(struct nm_charge *charge)
{
    nm_charge_resize(charge, 0);
}

int nm_charge_refusal(const struct nm_charge *charge)
{
    const struct nm_lease *lease = nm_client_lease();
    if (charge->lost || lease == NULL)
        tell_lost(lease);
    else {
        nm_ledger_note_refusal(&lease->ledger, (uint32_t)charge->row, lease->slot,
                               lease->generation);
        tell_over(lease, (uint32_t)charge->row, charge->refused_bytes);
    }
    return NM_CUDA_ERROR_OUT_OF_MEMORY;
}

void nm_charge_keep(const struct nm_charge *charge, enum nm_block_kind kind, uint64_t key,
                    uint64_t owner)
{
    struct nm_block stale,
        block = {.key = key, .owner = owner, .bytes = charge->bytes, .lease = charge->lease};
    if (charge->row < 0)
        return;
    block.kind = (uint8_t)kind;
    block.row = (uint8_t)charge->row;
    nm_block_put(&block, &stale);
    if (stale.kind != NM_BLOCK_NONE)
        nm_charge_give_back_block(&stale);
}

void nm_charge_give_back_block(const struct nm_block *block)
{
    nm_client_discharge(block->lease, block->row, block->bytes);
}

/* -- figures -- */

/* The lease with valid figures: the present one, else the one that was lost. */
static inline const struct nm_lease *reported_lease(bool *lost)
{
    const struct nm_lease *lease = present_lease(lost);
    return *lost ? nm_client_latest_lease() : lease;
}

/* The total is never below the use, and never zero, since programs divide by it. (A limit falls
   to zero if a stopped task's share is offered to others.) After the lease nothing is free. */
static inline bool figures_of(const struct nm_lease *lease, int row, bool lost,
                              struct nm_figures *out)
{
    uint64_t limit, used;
    if (row < 0)
        return false;
    int state = nm_ledger_look(&lease->ledger, (uint32_t)row, lease->slot, lease->generation,
                               &limit, &used);
    out->total_bytes = limit > used ? limit : used;
    if (out->total_bytes == 0)
        out->total_bytes = used = nm_ledger_total(&lease->ledger, (uint32_t)row);
    out->used_bytes = lost || state == NM_FENCED ? out->total_bytes : used;
    return true;
}

/* To most programs the driver shows one device. Each context is on it, and its row is remembered
   for the lease. */
static _Atomic uint64_t only_row; /* lease number << 8 | row + 1 */

static __attribute__((noinline)) int look_up_row_asked_for(const struct nm_lease *lease)
{
    int devices = 0;
    uint64_t context;
    if (nm_real_cuDeviceGetCount(&devices) != NM_CUDA_SUCCESS || devices != 1)
        return row_here(lease, endings_now(), &context);
    int row = row_of_device(lease, 0);
    if (row >= 0)
        atomic_store_explicit(&only_row, (uint64_t)lease->number << 8 | (uint64_t)(row + 1),
                              memory_order_relaxed);
    return row;
}

static inline int row_asked_for(const struct nm_lease *lease)
{
    uint64_t known = atomic_load_explicit(&only_row, memory_order_relaxed);
    return known >> 8 == lease->number && known != 0 ? (int)(known & 0xff) - 1
                                                     : look_up_row_asked_for(lease);
}

bool nm_figures_here(struct nm_figures *out)
{
    bool lost;
    const struct nm_lease *lease = reported_lease(&lost);
    return lease != NULL && figures_of(lease, row_asked_for(lease), lost, out);
}

bool nm_figures_of_device(nm_cu_device device, struct nm_figures *out)
{
    bool lost;
    const struct nm_lease *lease = reported_lease(&lost);
    return lease != NULL && figures_of(lease, row_of_device(lease, device), lost, out);
}

bool nm_figures_of_uuid(const char *uuid, struct nm_figures *out)
{
    bool lost;
    const struct nm_lease *lease = reported_lease(&lost);
    return lease != NULL && figures_of(lease, nm_client_row(lease, uuid), lost, out);
}
