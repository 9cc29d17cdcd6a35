/* ledger.c: see ledger.h. */
#include "ledger/ledger.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/prim.h"
#include "base/sealed_file.h"

#define MAGIC UINT64_C(0x31524744454c4d4e) /* "NMLEDGR1" */
#define ATTEMPTS 12      /* before a refusal: two processes may refuse each other */
#define SPIN_ATTEMPTS \
    4  /* the first attempts yield; later ones sleep, so that a preempted process can go on */
#define PAUSE_NS 100000u /* mean of a sleeping pause */

_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "one word, no lock");
_Static_assert((int)NM_LEDGER_ERRNO == NM_SEALED_ERRNO && (int)NM_LEDGER_SIZE == NM_SEALED_SIZE &&
                   (int)NM_LEDGER_SEALS == NM_SEALED_SEALS,
               "a fault of a file is returned as it is");
_Static_assert(offsetof(struct nm_limits, cap) ==
                   64 + NM_LEDGER_ROWS * 128 + (8 + 2) * NM_LEDGER_SLOTS,
               "layout of version 4");
_Static_assert(sizeof(struct nm_cap) == 32 + 8 * NM_LEDGER_ROWS, "layout of version 4");
_Static_assert(sizeof(struct nm_limits) - offsetof(struct nm_limits, cap) ==
                   sizeof(struct nm_cap) * NM_LEDGER_CAPS + 4 * NM_LEDGER_SLOTS,
               "layout of version 4");
_Static_assert(offsetof(struct nm_usage, beat) == 8 * NM_LEDGER_ROWS * NM_LEDGER_SLOTS + 64,
               "layout of version 4");
_Static_assert(sizeof(struct nm_usage) == 8 * (2 * NM_LEDGER_ROWS + 1) * NM_LEDGER_SLOTS + 64,
               "layout of version 4");

static const struct {
    int fault;
    const char *text;
} faults[] = {
    {NM_LEDGER_OK, "no fault"},
    {NM_LEDGER_ERRNO, "a system call failed"},
    {NM_LEDGER_SIZE, "a file of another size than a ledger's"},
    {NM_LEDGER_SEALS, "seals are missing"},
    {NM_LEDGER_FORMAT, "not a ledger, or one of another version"},
};

const char *nm_ledger_fault_text(int fault)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i].fault == fault)
            return faults[i].text;
    return "unknown fault";
}

/* -- files -- */

static bool is_ledger(const struct nm_limits *limits)
{
    return limits->magic == MAGIC && limits->version == NM_LEDGER_VERSION &&
           limits->rows == NM_LEDGER_ROWS && limits->slots == NM_LEDGER_SLOTS;
}

int nm_ledger_check(int limits_fd, int usage_fd)
{
    int fault = nm_sealed_check(limits_fd, sizeof(struct nm_limits), NM_SEALS_OWNED);
    return fault != NM_SEALED_OK
               ? fault
               : nm_sealed_check(usage_fd, sizeof(struct nm_usage), NM_SEALS_SHARED);
}

static void clear(struct nm_ledger *ledger)
{
    memset(ledger, 0, sizeof *ledger);
    ledger->limits_fd = ledger->usage_fd = -1;
}

void nm_ledger_unmap(struct nm_ledger *ledger)
{
    nm_sealed_unmap(ledger->limits, sizeof *ledger->limits, ledger->limits_fd);
    nm_sealed_unmap(ledger->usage, sizeof *ledger->usage, ledger->usage_fd);
    clear(ledger);
}

static int fail(struct nm_ledger *ledger, int fault)
{
    nm_ledger_unmap(ledger);
    return fault;
}

static int create_limits(struct nm_ledger *ledger, const struct nm_limits *from)
{
    void *address;
    ledger->limits_fd =
        nm_sealed_create("nodemgr-limits", sizeof(struct nm_limits), NM_SEALS_OWNED, &address);
    if (ledger->limits_fd < 0)
        return NM_LEDGER_ERRNO;
    ledger->limits = ledger->limits_writable = address;
    if (from != NULL)
        memcpy(ledger->limits_writable, from, offsetof(struct nm_limits, cap));
    atomic_store(&ledger->limits_writable->caps_used, 0);
    memset(ledger->limits_writable->slot_cap, 0, sizeof ledger->limits_writable->slot_cap);
    ledger->limits_writable->magic = MAGIC;
    ledger->limits_writable->version = NM_LEDGER_VERSION;
    ledger->limits_writable->rows = NM_LEDGER_ROWS;
    ledger->limits_writable->slots = NM_LEDGER_SLOTS;
    return NM_LEDGER_OK;
}

int nm_ledger_create(struct nm_ledger *ledger)
{
    void *address;
    clear(ledger);
    if (create_limits(ledger, NULL) != NM_LEDGER_OK)
        return fail(ledger, NM_LEDGER_ERRNO);
    ledger->usage_fd =
        nm_sealed_create("nodemgr-usage", sizeof(struct nm_usage), NM_SEALS_SHARED, &address);
    ledger->usage = address;
    return ledger->usage_fd >= 0 ? NM_LEDGER_OK : fail(ledger, NM_LEDGER_ERRNO);
}

int nm_ledger_map_client(struct nm_ledger *ledger, int limits_fd, int usage_fd)
{
    clear(ledger);
    int fault = nm_ledger_check(limits_fd, usage_fd);
    if (fault != NM_LEDGER_OK)
        return fault;
    ledger->limits = nm_sealed_map(limits_fd, sizeof(struct nm_limits), PROT_READ);
    ledger->usage = nm_sealed_map(usage_fd, sizeof(struct nm_usage), PROT_READ | PROT_WRITE);
    if (ledger->limits == NULL || ledger->usage == NULL)
        return fail(ledger, NM_LEDGER_ERRNO);
    if (!is_ledger(ledger->limits))
        return fail(ledger, NM_LEDGER_FORMAT);
    ledger->limits_fd = limits_fd;
    ledger->usage_fd = usage_fd;
    return NM_LEDGER_OK;
}

int nm_ledger_adopt(struct nm_ledger *ledger, int limits_fd, int usage_fd)
{
    struct nm_ledger old;
    clear(ledger);
    int fault = nm_ledger_map_client(&old, limits_fd, usage_fd);
    if (fault != NM_LEDGER_OK)
        return fault;
    fault = create_limits(ledger, old.limits);
    if (fault != NM_LEDGER_OK) {
        old.limits_fd = old.usage_fd = -1; /* still the caller's */
        fail(&old, fault);
        return fail(ledger, fault);
    }
    ledger->usage = old.usage;
    ledger->usage_fd = old.usage_fd;
    old.usage = NULL;
    old.usage_fd = -1;
    nm_ledger_unmap(&old);
    return NM_LEDGER_OK;
}

int nm_ledger_map_private(struct nm_ledger *ledger)
{
    clear(ledger);
    ledger->limits_writable = nm_sealed_map(-1, sizeof(struct nm_limits), PROT_READ | PROT_WRITE);
    ledger->limits = ledger->limits_writable;
    ledger->usage = nm_sealed_map(-1, sizeof(struct nm_usage), PROT_READ | PROT_WRITE);
    if (ledger->limits == NULL || ledger->usage == NULL)
        return fail(ledger, NM_LEDGER_ERRNO);
    return NM_LEDGER_OK;
}

/* -- words -- */

static uint64_t word_of(uint32_t generation, uint64_t bytes)
{
    return (uint64_t)(generation & 0xffff) << NM_GENERATION_SHIFT | bytes;
}

static bool is_of(uint64_t word, uint32_t generation)
{
    return word >> NM_GENERATION_SHIFT == (generation & 0xffff);
}

static uint64_t state_of(uint32_t generation, enum nm_slot_state state)
{
    return (uint64_t)(generation & 0xffff) << 8 | (uint64_t)state;
}

static bool in_range(uint32_t row, uint32_t slot)
{
    return row < NM_LEDGER_ROWS && slot < NM_LEDGER_SLOTS;
}

static uint64_t clamp(uint64_t word, uint64_t most)
{
    uint64_t bytes = word & NM_BYTES_MASK;
    return bytes < most ? bytes : most;
}

/* The most that one word counts for. Without a known total, the word's 48 bits. */
static uint64_t most_of(const struct nm_limits *limits, uint32_t row)
{
    uint64_t total = atomic_load_explicit(&limits->row[row].total_bytes, memory_order_relaxed);
    return total != 0 && total < NM_BYTES_MASK ? total : NM_BYTES_MASK;
}

static inline uint64_t correction_of(const struct nm_limits *limits, uint32_t row)
{
    uint64_t bytes = atomic_load_explicit(&limits->row[row].correction_bytes, memory_order_relaxed);
    return bytes < NM_BYTES_MASK ? bytes : NM_BYTES_MASK;
}

/* The row is in range: this runs at each allocation. */
static inline uint64_t used_of(const struct nm_ledger *ledger, uint32_t row)
{
    const struct nm_limits *limits = ledger->limits;
    const _Atomic uint64_t *word = ledger->usage->word[row],
                           *end = word + nm_ledger_slots_used(ledger);
    uint64_t most = most_of(limits, row), sum = 0;
    for (; word < end; word++)
        sum += clamp(atomic_load_explicit(word, memory_order_seq_cst), most);
    return sum + correction_of(limits, row);
}

/* -- caps -- */

static inline uint32_t caps_used(const struct nm_limits *limits)
{
    uint32_t caps = atomic_load_explicit(&limits->caps_used, memory_order_seq_cst);
    return caps < NM_LEDGER_CAPS ? caps : NM_LEDGER_CAPS;
}

/* The slot's cap; 0: none. */
static inline uint32_t cap_of(const struct nm_limits *limits, uint32_t slot, uint32_t caps)
{
    uint32_t cap = atomic_load_explicit(&limits->slot_cap[slot], memory_order_relaxed);
    return cap < caps ? cap : 0;
}

static uint64_t kept_of(const struct nm_limits *limits, uint32_t cap, uint32_t row)
{
    if ((atomic_load(&limits->cap[cap].rows) >> row & 1) == 0)
        return 0;
    return atomic_load(&limits->cap[cap].kept_bytes);
}

static uint64_t correction_in(const struct nm_limits *limits, uint32_t cap, uint32_t row)
{
    return clamp(
        atomic_load_explicit(&limits->cap[cap].correction_bytes[row], memory_order_relaxed),
        NM_BYTES_MASK);
}

/* The bytes that the processes of this cap use. */
static uint64_t used_in(const struct nm_ledger *ledger, uint32_t cap, uint32_t row, uint32_t caps)
{
    const struct nm_limits *limits = ledger->limits;
    uint32_t slots = nm_ledger_slots_used(ledger);
    uint64_t most = most_of(limits, row), sum = correction_in(limits, cap, row);
    for (uint32_t slot = 0; slot < slots; slot++)
        if (cap_of(limits, slot, caps) == cap)
            sum += clamp(atomic_load(&ledger->usage->word[row][slot]), most);
    return sum;
}

/* The bytes in use beyond what is kept for their tasks; *kept_bytes gets those that are kept. A few
   caps at a time, as a thread's stack may be small. */
static uint64_t promised_of(const struct nm_ledger *ledger, uint32_t row, uint64_t *kept_bytes)
{
    enum { TOGETHER = 64 };
    const struct nm_limits *limits = ledger->limits;
    uint32_t caps = caps_used(limits), slots = nm_ledger_slots_used(ledger);
    uint64_t most = most_of(limits, row), unkept = correction_of(limits, row), all_kept = 0;
    if (caps == 0)
        unkept = used_of(ledger, row);
    for (uint32_t first = 0; first < caps; first += TOGETHER) {
        uint64_t used[TOGETHER] = {0};
        for (uint32_t slot = 0; slot < slots; slot++) {
            uint32_t place = cap_of(limits, slot, caps) - first;
            if (place < TOGETHER)
                used[place] += clamp(atomic_load(&ledger->usage->word[row][slot]), most);
        }
        for (uint32_t cap = first; cap < caps && cap - first < TOGETHER; cap++) {
            uint64_t kept = cap != 0 ? kept_of(limits, cap, row) : 0;
            uint64_t part = cap != 0 ? correction_in(limits, cap, row) : 0;
            uint64_t all = used[cap - first] + part;
            unkept -= part < unkept ? part : unkept; /* of the row's correction */
            unkept += all > kept ? all - kept : 0;
            all_kept += kept;
        }
    }
    *kept_bytes = all_kept;
    return unkept;
}

uint64_t nm_ledger_unkept(const struct nm_ledger *ledger, uint32_t row)
{
    uint64_t kept_bytes;
    return row < NM_LEDGER_ROWS ? promised_of(ledger, row, &kept_bytes) : 0;
}

uint64_t nm_ledger_promised(const struct nm_ledger *ledger, uint32_t row)
{
    uint64_t kept_bytes;
    return row < NM_LEDGER_ROWS ? promised_of(ledger, row, &kept_bytes) + kept_bytes : 0;
}

uint64_t nm_ledger_cap(const struct nm_ledger *ledger, uint32_t slot)
{
    const struct nm_limits *limits = ledger->limits;
    uint32_t cap = slot < NM_LEDGER_SLOTS ? cap_of(limits, slot, caps_used(limits)) : 0;
    return cap != 0 ? atomic_load_explicit(&limits->cap[cap].most_bytes, memory_order_relaxed) : 0;
}

uint64_t nm_ledger_used(const struct nm_ledger *ledger, uint32_t row)
{
    return row < NM_LEDGER_ROWS ? used_of(ledger, row) : 0;
}

uint64_t nm_ledger_correction(const struct nm_ledger *ledger, uint32_t row)
{
    return row < NM_LEDGER_ROWS ? correction_of(ledger->limits, row) : 0;
}

uint64_t nm_ledger_slot_used(const struct nm_ledger *ledger, uint32_t row, uint32_t slot)
{
    return in_range(row, slot)
               ? clamp(atomic_load(&ledger->usage->word[row][slot]), most_of(ledger->limits, row))
               : 0;
}

uint64_t nm_ledger_peak(const struct nm_ledger *ledger, const uint32_t *slots,
                        const uint32_t *generations, uint32_t count)
{
    uint64_t peak = 0;
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        uint64_t most = most_of(ledger->limits, row), sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (slots[i] >= NM_LEDGER_SLOTS)
                continue;
            uint64_t word =
                atomic_load_explicit(&ledger->usage->peak[slots[i]][row], memory_order_relaxed);
            sum += is_of(word, generations[i]) ? clamp(word & ~NM_PEAK_REFUSED, most) : 0;
        }
        sum = sum < most ? sum : most;
        peak = peak > sum ? peak : sum;
    }
    return peak;
}

void nm_ledger_note_refusal(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                            uint32_t generation)
{
    if (!in_range(row, slot))
        return;
    _Atomic uint64_t *peak = &ledger->usage->peak[slot][row];
    uint64_t before = atomic_load_explicit(peak, memory_order_relaxed);
    while (is_of(before, generation) &&
           !atomic_compare_exchange_weak_explicit(peak, &before, before | NM_PEAK_REFUSED,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

int nm_ledger_was_refused(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation)
{
    for (uint32_t row = 0; slot < NM_LEDGER_SLOTS && row < NM_LEDGER_ROWS; row++) {
        uint64_t word = atomic_load_explicit(&ledger->usage->peak[slot][row], memory_order_relaxed);
        if (is_of(word, generation) && (word & NM_PEAK_REFUSED) != 0)
            return 1;
    }
    return 0;
}

uint64_t nm_ledger_limit(const struct nm_ledger *ledger, uint32_t row)
{
    return row < NM_LEDGER_ROWS
               ? atomic_load_explicit(&ledger->limits->row[row].limit_bytes, memory_order_relaxed)
               : 0;
}

uint64_t nm_ledger_total(const struct nm_ledger *ledger, uint32_t row)
{
    return row < NM_LEDGER_ROWS
               ? atomic_load_explicit(&ledger->limits->row[row].total_bytes, memory_order_relaxed)
               : 0;
}

uint32_t nm_ledger_slots_used(const struct nm_ledger *ledger)
{
    uint32_t slots = atomic_load_explicit(&ledger->limits->slots_used, memory_order_relaxed);
    /* after the process's own addition */
    uint32_t shared = atomic_load_explicit(&ledger->usage->slots_used, memory_order_seq_cst);
    slots = slots > shared ? slots : shared;
    return slots < NM_LEDGER_SLOTS ? slots : NM_LEDGER_SLOTS;
}

const char *nm_ledger_uuid(const struct nm_ledger *ledger, uint32_t row)
{
    return row < NM_LEDGER_ROWS ? ledger->limits->row[row].uuid : "";
}

int nm_ledger_slot_state(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation)
{
    if (slot >= NM_LEDGER_SLOTS)
        return NM_FENCED;
    uint64_t state = atomic_load_explicit(&ledger->limits->slot_state[slot], memory_order_acquire);
    if (state == state_of(generation, NM_SLOT_LIVE))
        return NM_OK;
    return state == state_of(generation, NM_SLOT_STALLED) ? NM_STALLED : NM_FENCED;
}

static uint64_t rest(uint64_t limit, uint64_t used)
{
    return limit > used ? limit - used : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* As nm_ledger_look, where a task of the environment has a cap. */
static __attribute__((noinline)) void look_beside_caps(const struct nm_ledger *ledger,
                                                       uint32_t row, uint32_t slot, uint32_t caps,
                                                       uint64_t *limit, uint64_t *used)
{
    uint32_t cap = cap_of(ledger->limits, slot, caps);
    uint64_t kept, promised = promised_of(ledger, row, &kept) + kept;
    if (cap == 0) {
        *used = promised;
        return;
    }
    uint64_t own = used_in(ledger, cap, row, caps), most = nm_ledger_cap(ledger, slot);
    kept = kept_of(ledger->limits, cap, row);
    /* the rest of what is kept for it, and then what nothing was promised */
    uint64_t above = own > kept ? own : kept;
    uint64_t more = rest(kept, own) + smaller(rest(most, above), rest(*limit, promised));
    *limit = own + smaller(more, rest(*limit, used_of(ledger, row)));
    *used = own;
}

int nm_ledger_look(const struct nm_ledger *ledger, uint32_t row, uint32_t slot, uint32_t generation,
                   uint64_t *limit, uint64_t *used)
{
    if (!in_range(row, slot)) {
        *limit = *used = 0;
        return NM_FENCED;
    }
    uint32_t caps = caps_used(ledger->limits);
    *limit = atomic_load_explicit(&ledger->limits->row[row].limit_bytes, memory_order_relaxed);
    if (caps != 0)
        look_beside_caps(ledger, row, slot, caps, limit, used);
    else
        *used = used_of(ledger, row);
    return nm_ledger_slot_state(ledger, slot, generation);
}

/* -- reserving -- */

/* Adds to the process's own word; false if the word is of another generation or cannot count so
   much. */
static bool announce(_Atomic uint64_t *word, uint32_t generation, uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
    do {
        if (!is_of(before, generation) || (before & NM_BYTES_MASK) + bytes > NM_BYTES_MASK)
            return false;
    } while (!atomic_compare_exchange_weak(word, &before, before + bytes));
    return true;
}

static void withdraw(_Atomic uint64_t *word, uint32_t generation, uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(word, memory_order_relaxed), left;
    do {
        if (!is_of(before, generation))
            return;
        left = (before & NM_BYTES_MASK) > bytes ? (before & NM_BYTES_MASK) - bytes : 0;
    } while (!atomic_compare_exchange_weak(word, &before, word_of(generation, left)));
}

static void pause_before(unsigned attempt)
{
    if (attempt <= SPIN_ATTEMPTS)
        nm_pause_ns(0);
    else
        nm_pause_ns(PAUSE_NS / 2 + nm_random() % PAUSE_NS);
}

/* NM_OK: added. */
static inline int announce_in(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                              uint32_t generation, uint64_t bytes)
{
    _Atomic uint64_t *word = &ledger->usage->word[row][slot];
    if (bytes > nm_ledger_limit(ledger, row) || bytes > NM_BYTES_MASK)
        return NM_OVER; /* too much by itself: no other process to wait for */
    if (announce(word, generation, bytes))
        return NM_OK;
    return is_of(atomic_load(word), generation) ? NM_OVER : NM_FENCED;
}

/* After an addition that holds: raises the peak to the process's own word. Its other threads may
   free meanwhile: then they freed first. */
static inline void note_peak(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                             uint32_t generation)
{
    uint64_t now = atomic_load_explicit(&ledger->usage->word[row][slot], memory_order_relaxed);
    _Atomic uint64_t *peak = &ledger->usage->peak[slot][row];
    uint64_t before = atomic_load_explicit(peak, memory_order_relaxed);
    while (is_of(now, generation) &&
           ((before & ~NM_PEAK_REFUSED) < now || !is_of(before, generation)) &&
           !atomic_compare_exchange_weak_explicit(
               peak, &before, now | (is_of(before, generation) ? before & NM_PEAK_REFUSED : 0),
               memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Where a task of the environment has a cap. A process without one shares what is kept for none. */
static __attribute__((noinline)) bool fits_beside_caps(const struct nm_ledger *ledger, uint32_t row,
                                                       uint32_t slot, uint32_t caps, uint64_t own,
                                                       uint64_t limit)
{
    uint32_t cap = cap_of(ledger->limits, slot, caps);
    uint64_t kept;
    if (cap != 0) {
        uint64_t most = nm_ledger_cap(ledger, slot), used = used_in(ledger, cap, row, caps);
        if (own > most || used > most)
            return false;
        if (used <= kept_of(ledger->limits, cap, row))
            return used_of(ledger, row) <= limit;
    }
    uint64_t unkept = promised_of(ledger, row, &kept);
    return own <= limit && unkept + kept <= limit;
}

/* The process's own word counts unclamped: otherwise it would pass with a whole GPU, and with
   managed memory beyond it. */
static inline bool fits(const struct nm_ledger *ledger, uint32_t row, uint32_t slot)
{
    uint64_t own =
        atomic_load_explicit(&ledger->usage->word[row][slot], memory_order_relaxed) & NM_BYTES_MASK;
    /* after the addition to the own word, in the order that nm_ledger_lower_limit rests on */
    uint64_t limit =
        atomic_load_explicit(&ledger->limits->row[row].limit_bytes, memory_order_seq_cst);
    uint32_t caps = caps_used(ledger->limits);
    if (caps != 0)
        return fits_beside_caps(ledger, row, slot, caps, own, limit);
    return own <= limit && used_of(ledger, row) <= limit;
}

/* The sum does not fit, perhaps because of another process that withdraws as well. Kept apart
   from the path of most calls. */
static __attribute__((noinline)) int give_way(const struct nm_ledger *ledger, uint32_t row,
                                              uint32_t slot, uint32_t generation, uint64_t bytes)
{
    int answer = NM_OK;
    for (unsigned attempt = 1; answer == NM_OK; attempt++) {
        withdraw(&ledger->usage->word[row][slot], generation, bytes);
        if (attempt == ATTEMPTS)
            return NM_OVER;
        pause_before(attempt);
        answer = announce_in(ledger, row, slot, generation, bytes);
        if (answer == NM_OK && fits(ledger, row, slot))
            return NM_OK;
    }
    return answer;
}

int nm_ledger_reserve(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                      uint32_t generation, uint64_t bytes)
{
    if (!in_range(row, slot))
        return NM_FENCED;
    int state = nm_ledger_slot_state(ledger, slot, generation);
    int answer = state == NM_OK ? announce_in(ledger, row, slot, generation, bytes) : state;
    if (answer == NM_OK && !fits(ledger, row, slot))
        answer = give_way(ledger, row, slot, generation, bytes);
    if (answer == NM_OK)
        note_peak(ledger, row, slot, generation);
    return answer;
}

int nm_ledger_charge(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                     uint32_t generation, uint64_t bytes)
{
    if (!in_range(row, slot) || bytes > NM_BYTES_MASK)
        return NM_FENCED;
    if (!announce(&ledger->usage->word[row][slot], generation, bytes))
        return NM_FENCED;
    note_peak(ledger, row, slot, generation);
    return NM_OK;
}

void nm_ledger_release(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                       uint32_t generation, uint64_t bytes)
{
    if (in_range(row, slot))
        withdraw(&ledger->usage->word[row][slot], generation, bytes);
}

uint64_t nm_ledger_take(const struct nm_ledger *ledger, uint32_t row, uint32_t slot,
                        uint32_t generation)
{
    if (!in_range(row, slot))
        return 0;
    _Atomic uint64_t *word = &ledger->usage->word[row][slot];
    uint64_t before = atomic_load(word);
    do {
        /* nothing to release: a page that is only read costs less */
        if (!is_of(before, generation) || (before & NM_BYTES_MASK) == 0)
            return 0;
    } while (!atomic_compare_exchange_weak(word, &before, word_of(generation, 0)));
    return before & NM_BYTES_MASK;
}

/* -- beats -- */

void nm_ledger_beat(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation,
                    uint64_t count)
{
    if (slot < NM_LEDGER_SLOTS)
        atomic_store_explicit(&ledger->usage->beat[slot],
                              word_of(generation, count & NM_BYTES_MASK), memory_order_relaxed);
}

uint64_t nm_ledger_beat_word(const struct nm_ledger *ledger, uint32_t slot)
{
    return slot < NM_LEDGER_SLOTS
               ? atomic_load_explicit(&ledger->usage->beat[slot], memory_order_relaxed)
               : 0;
}

int nm_ledger_is_unsuspendable(const struct nm_ledger *ledger, uint32_t slot)
{
    uint64_t word = nm_ledger_beat_word(ledger, slot);
    int generation = nm_ledger_slot_generation(ledger, slot);
    return generation >= 0 && is_of(word, (uint32_t)generation) &&
           (word & NM_BEAT_UNSUSPENDABLE) != 0;
}

/* -- the manager's writes -- */

int nm_ledger_set_row(struct nm_ledger *ledger, uint32_t row, const char *uuid,
                      uint64_t total_bytes)
{
    if (row >= NM_LEDGER_ROWS || ledger->limits_writable == NULL)
        return -1;
    struct nm_limit_row *out = &ledger->limits_writable->row[row];
    nm_copy(out->uuid, sizeof out->uuid, uuid);
    atomic_store(&out->total_bytes, total_bytes);
    return 0;
}

int nm_ledger_set_limit(struct nm_ledger *ledger, uint32_t row, uint64_t limit_bytes)
{
    if (row >= NM_LEDGER_ROWS || ledger->limits_writable == NULL)
        return -1;
    atomic_store(&ledger->limits_writable->row[row].limit_bytes, limit_bytes);
    return 0;
}

/* A reservation adds to its word first and loads the limit then; here the limit is stored first and
   the words are loaded then. So a reservation that has met the old limit is in the sum, and the
   limit follows it up again: at most to the old one, within which it passed. */
int nm_ledger_lower_limit(struct nm_ledger *ledger, uint32_t row, uint64_t least_bytes,
                          uint64_t *limit_bytes)
{
    if (row >= NM_LEDGER_ROWS || ledger->limits_writable == NULL)
        return -1;
    _Atomic uint64_t *limit = &ledger->limits_writable->row[row].limit_bytes;
    uint64_t before = atomic_load(limit), left = least_bytes;
    for (;;) {
        uint64_t used = nm_ledger_promised(ledger, row);
        left = used > left ? used : left;
        if (left >= before) {
            atomic_store(limit, before);
            *limit_bytes = before;
            return 0;
        }
        atomic_store(limit, left);
        if (nm_ledger_promised(ledger, row) <= left)
            break;
    }
    *limit_bytes = left;
    return 0;
}

int nm_ledger_set_correction(struct nm_ledger *ledger, uint32_t row, uint64_t correction_bytes)
{
    if (row >= NM_LEDGER_ROWS || ledger->limits_writable == NULL)
        return -1;
    atomic_store(&ledger->limits_writable->row[row].correction_bytes, correction_bytes);
    return 0;
}

/* The rows last, when the rest is there; and the caps in use before any slot is of it. A reservation
   of others adds to its word first and reads the caps then: nm_ledger_promised after this call has
   the words of all that did not meet the new cap. */
int nm_ledger_set_cap(struct nm_ledger *ledger, uint32_t cap, uint64_t kept_bytes,
                      uint64_t most_bytes, uint32_t rows)
{
    if (cap == 0 || cap >= NM_LEDGER_CAPS || ledger->limits_writable == NULL)
        return -1;
    struct nm_limits *limits = ledger->limits_writable;
    struct nm_cap *out = &limits->cap[cap];
    if (atomic_load(&out->most_bytes) == 0) /* it begins */
        for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++)
            atomic_store(&out->correction_bytes[row], 0);
    atomic_store(&out->most_bytes, most_bytes);
    atomic_store(&out->kept_bytes, kept_bytes);
    atomic_store(&out->rows, rows);
    uint32_t used = caps_used(limits) > cap ? caps_used(limits) : cap + 1;
    while (used > 0 && (used == 1 || atomic_load(&limits->cap[used - 1].most_bytes) == 0))
        used--;
    atomic_store(&limits->caps_used, used);
    return 0;
}

int nm_ledger_set_cap_correction(struct nm_ledger *ledger, uint32_t cap, uint32_t row,
                                 uint64_t correction_bytes)
{
    if (cap == 0 || cap >= NM_LEDGER_CAPS || row >= NM_LEDGER_ROWS ||
        ledger->limits_writable == NULL)
        return -1;
    atomic_store(&ledger->limits_writable->cap[cap].correction_bytes[row], correction_bytes);
    return 0;
}

int nm_ledger_set_slot_cap(struct nm_ledger *ledger, uint32_t slot, uint32_t cap)
{
    if (slot >= NM_LEDGER_SLOTS || cap >= NM_LEDGER_CAPS || ledger->limits_writable == NULL)
        return -1;
    atomic_store(&ledger->limits_writable->slot_cap[slot], (uint16_t)cap);
    return 0;
}

int nm_ledger_set_hold(struct nm_ledger *ledger, uint32_t slot, enum nm_hold hold)
{
    if (slot >= NM_LEDGER_SLOTS || ledger->limits_writable == NULL)
        return -1;
    _Atomic uint32_t *word = &ledger->limits_writable->slot_hold[slot];
    if (atomic_exchange(word, (uint32_t)hold) != (uint32_t)hold)
        nm_shared_word_wake(word);
    return 0;
}

/* Words of another generation are of an earlier process. Words of this one stay, even if
   the limits file has another state: after a restart a process may be older than its slot. */
static void begin_words(const struct nm_ledger *ledger, uint32_t slot, uint32_t generation)
{
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        _Atomic uint64_t *word = &ledger->usage->word[row][slot];
        if (!is_of(atomic_load(word), generation)) {
            atomic_store(word, word_of(generation, 0));
            atomic_store(&ledger->usage->peak[slot][row], word_of(generation, 0));
        }
    }
}

int nm_ledger_set_slot(struct nm_ledger *ledger, uint32_t slot, uint32_t generation,
                       enum nm_slot_state state)
{
    if (slot >= NM_LEDGER_SLOTS || ledger->limits_writable == NULL)
        return -1;
    struct nm_limits *limits = ledger->limits_writable;
    begin_words(ledger, slot, generation);
    /* before the slot is live, so that its additions are summed */
    if (atomic_load(&limits->slots_used) <= slot)
        atomic_store(&limits->slots_used, slot + 1);
    if (atomic_load(&ledger->usage->slots_used) < atomic_load(&limits->slots_used))
        atomic_store(&ledger->usage->slots_used, atomic_load(&limits->slots_used));
    atomic_store(&limits->slot_state[slot], state_of(generation, state));
    return 0;
}

int nm_ledger_clear_slot(struct nm_ledger *ledger, uint32_t slot, uint32_t generation)
{
    if (slot >= NM_LEDGER_SLOTS || ledger->limits_writable == NULL)
        return -1;
    uint32_t next = (generation + 1) & 0xffff;
    atomic_store(&ledger->limits_writable->slot_state[slot], state_of(next, NM_SLOT_FREE));
    atomic_store(&ledger->limits_writable->slot_cap[slot], 0);
    nm_ledger_set_hold(ledger, slot, NM_NOT_HELD);
    for (uint32_t row = 0; row < NM_LEDGER_ROWS; row++) {
        atomic_store(&ledger->usage->word[row][slot], word_of(next, 0));
        atomic_store(&ledger->usage->peak[slot][row], word_of(next, 0));
    }
    return (int)next;
}

int nm_ledger_slot_generation(const struct nm_ledger *ledger, uint32_t slot)
{
    return slot < NM_LEDGER_SLOTS
               ? (int)(atomic_load(&ledger->limits->slot_state[slot]) >> 8 & 0xffff)
               : -1;
}
