/* launch_model.c: the launch gate of several processes in one, with a clock of its own.
 *
 *   launch_model MS SEED LIBRARY WINDOW_US TENANT...
 *   TENANT: SHARE:CLASS:KIND:KERNEL_NS:NUMBER[:STOP_US]   CLASS n, l or b; KIND stream, service, pretender
 *
 * Each tenant is a copy of the gate (LIBRARY: csrc/launch as a shared object), with its threads as
 * fibers. The device is the simulator's schedule. A sleep and a wake-up are late, as on a virtual
 * machine; each thread has a processor for itself. Equal arguments give equal results.
 *
 * SHARE 0: a process without a gate. NUMBER: launches between two waits (stream), nanoseconds
 * between two requests in the mean (service). STOP_US: when the process is stopped (SIGSTOP).
 *
 * Prints "gpu BUSY PAUSE" (the longest time without a kernel, in nanoseconds), and for each tenant "tenant BUSY LAUNCHES HELPER P50 P99": millionths of the
 * time in which a kernel or the gate's thread ran, and latencies in nanoseconds.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include "client/client.h"
#include "gate/gate.h"
#include "hooks/interpose.h"
#include "launch/launch.h"
#include "sim/node/schedule.h"

enum { TENANTS = 8, FIBERS = 2 * TENANTS + 1, STACK = 1 << 18, ENDS = 1 << 16, SAMPLES = 1 << 16 };
enum { BURST = 16 }; /* launches of a request */
#define BEGIN_NS UINT64_C(1000000000)
#define CLOCK_NS 25
#define LAUNCH_NS 2000
#define RECORD_NS 800
#define QUERY_NS 300
#define WAKE_NS 5000     /* the caller's part of a futex wake */
#define SLEEP_NS 3000
#define SPIN_NS 20000    /* of a waiting driver call */

struct fiber {
    ucontext_t context;
    struct tenant *tenant;
    void (*body)(struct tenant *);
    void *(*helper)(void *);
    uint64_t at_ns, busy_ns, sleeps;
    _Atomic uint32_t *word; /* waits for it */
    bool used;
    char stack[STACK];
};

struct event {
    struct tenant *tenant;
    uint64_t pieces, recorded_ns; /* behind that many pieces */
};

struct tenant {
    uint32_t number, share, burst;
    char class, kind[16];
    uint64_t kernel_ns, pause_ns, pieces, launches, chance, stop_ns;
    struct fiber *thread, *helper;
    struct nm_lease lease;
    int (*begin)(struct nm_launch *, const void *, uint64_t, nm_cu_stream, bool);
    void (*end)(struct nm_launch *, int);
    void (*before_wait)(nm_cu_stream, bool, bool);
    int (*after_wait)(int);
    nm_sim_piece ring[NM_SIM_PIECES];
    uint64_t ends_ns[ENDS], sample_ns[SAMPLES];
    uint32_t samples;
};

void *_Atomic nm_originals[NM_SYMBOL_COUNT];
static struct fiber fibers[FIBERS], *self;
static struct tenant tenants[TENANTS];
static uint32_t tenant_count;
static ucontext_t scheduler;
static struct nm_launch_gate gate;
static nm_sim_schedule device = {.now_ns = BEGIN_NS, .running = NM_SIM_NOT_RUNNING};
static uint64_t chance, end_ns, beat_at_ns, last_end_ns = BEGIN_NS, longest_pause_ns;

/* -- time -- */

static double draw_from(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static double draw(void)
{
    return draw_from(&chance);
}

static void yield(void)
{
    swapcontext(&self->context, &scheduler);
}

static void spend(uint64_t duration_ns)
{
    self->at_ns += duration_ns;
    self->busy_ns += duration_ns;
    for (int i = 0; i < FIBERS; i++)
        if (self->at_ns >= end_ns || (fibers[i].used && fibers[i].at_ns < self->at_ns)) {
            yield();
            return;
        }
}

uint64_t nm_now_ns(void)
{
    spend(CLOCK_NS);
    return self->at_ns;
}

static void sleep_until(uint64_t at_ns, _Atomic uint32_t *word)
{
    spend(SLEEP_NS);
    self->sleeps++;
    uint64_t late_ns = (uint64_t)(20e3 + 15e3 * draw() + (draw() < 0.02 ? 60e3 : 0));
    self->at_ns = (at_ns > self->at_ns ? at_ns : self->at_ns) + late_ns;
    self->word = word;
    yield();
    self->word = NULL;
}

void nm_pause_ns(uint64_t duration_ns)
{
    sleep_until(self->at_ns + duration_ns, NULL);
}

void nm_nap_ns(uint64_t duration_ns)
{
    nm_pause_ns(duration_ns);
}

bool nm_shared_word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    if (atomic_load(word) == seen)
        sleep_until(self->at_ns + timeout_ns, word);
    return true;
}

void nm_shared_word_wake(_Atomic uint32_t *word)
{
    for (int i = 0; i < FIBERS; i++) {
        uint64_t at_ns = self->at_ns + (uint64_t)(15e3 + 20e3 * draw());
        if (fibers[i].used && fibers[i].word == word && fibers[i].at_ns > at_ns)
            fibers[i].at_ns = at_ns;
    }
    spend(WAKE_NS);
}

bool nm_word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    return nm_shared_word_wait(word, seen, timeout_ns);
}

void nm_word_wake(_Atomic uint32_t *word)
{
    nm_shared_word_wake(word);
}

/* -- the rest of the operating system, and of the library -- */

bool nm_lock_within(struct nm_lock *lock, uint64_t timeout_ns)
{
    for (uint64_t until_ns = self->at_ns + timeout_ns; atomic_load(&lock->word) != 0; spend(50))
        if (self->at_ns >= until_ns)
            return false;
    atomic_store(&lock->word, 1);
    return true;
}

void nm_lock(struct nm_lock *lock)
{
    nm_lock_within(lock, UINT64_MAX / 2);
}

void nm_unlock(struct nm_lock *lock)
{
    atomic_store(&lock->word, 0);
}

static struct fiber *new_fiber(struct tenant *tenant, uint64_t at_ns);

static void run_helper(struct tenant *tenant)
{
    tenant->helper->helper(NULL);
}

int nm_thread_start(void *(*body)(void *), size_t least_stack_bytes)
{
    struct tenant *tenant = self->tenant;
    (void)least_stack_bytes;
    tenant->helper = new_fiber(tenant, self->at_ns + 50000);
    tenant->helper->body = run_helper;
    tenant->helper->helper = body;
    return 0;
}

void nm_thread_look(struct nm_thread *thread) { (void)thread; }
void nm_thread_end(const struct nm_thread *thread) { (void)thread; }
bool nm_thread_leave(void) { return true; }
bool nm_forked_by_pid(void) { return false; }
void nm_say(const char *format, ...) { (void)format; }
bool nm_client_gated(void) { return true; }
void nm_client_ask_resume(void) {}
bool nm_is_captured(nm_cu_stream stream, bool per_thread) { return stream == NULL && per_thread; }
bool nm_captures_under_way(void) { return false; }
void nm_captures_forget(void) {}
int nm_charge_row_here(const struct nm_lease *lease) { return lease != NULL ? 0 : -1; }

int nm_memfd(const char *name) { return memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING); }

int64_t nm_fd_size(int fd)
{
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_size : -1;
}

/* -- the device -- */


static nm_sim_piece *ring_of(void *context, uint32_t seat)
{
    (void)context;
    return tenants[seat].ring;
}

static void run_device(uint64_t until_ns)
{
    nm_sim_step step = {.rules = {NM_SIM_TIME_SLICING, 2000000}, .ring_of = ring_of,
                        .until_ns = until_ns, .seat = NM_SIM_NOT_RUNNING};
    bool done = false;
    while (!done) {
        done = nm_sim_schedule_run(&device, &step);
        for (uint32_t i = 0; i < device.ended; i++) {
            last_end_ns = device.ends[i].at_ns;
            tenants[device.ends[i].seat].ends_ns[device.ends[i].index % ENDS] = last_end_ns;
        }
        device.ended = 0;
    }
}

static nm_sim_runner *runner_of(struct tenant *tenant)
{
    return nm_sim_schedule_runner(&device, tenant->number);
}

/* Before a launch. */
static void note_pause(void)
{
    uint64_t pause_ns = self->at_ns - last_end_ns;
    for (uint32_t i = 0; i < tenant_count; i++)
        if (runner_of(&tenants[i])->head < runner_of(&tenants[i])->tail)
            return;
    longest_pause_ns = pause_ns > longest_pause_ns ? pause_ns : longest_pause_ns;
}

static bool is_done(struct tenant *tenant, uint64_t pieces)
{
    run_device(self->at_ns);
    return runner_of(tenant)->head >= pieces;
}

/* As a driver call waits: it sleeps until the end if nothing is added, or the last moment spins. */
static void await(struct tenant *tenant, uint64_t pieces)
{
    while (!is_done(tenant, pieces)) {
        static nm_sim_schedule ahead;
        nm_sim_step step = {.rules = {NM_SIM_TIME_SLICING, 2000000}, .ring_of = ring_of,
                            .until_ns = self->at_ns + 10000000, .seat = tenant->number,
                            .index = pieces - 1};
        ahead = device;
        while (!nm_sim_schedule_run(&ahead, &step))
            ahead.ended = 0;
        if (ahead.now_ns > self->at_ns + SPIN_NS)
            sleep_until(ahead.now_ns, NULL);
        else
            spend(1000);
    }
}

static void launch_kernel(struct tenant *tenant)
{
    spend(LAUNCH_NS);
    if (tenant->pieces >= NM_SIM_PIECES)
        await(tenant, tenant->pieces - NM_SIM_PIECES + 1);
    run_device(self->at_ns);
    note_pause();
    nm_sim_runner *runner = runner_of(tenant);
    nm_sim_piece *piece = &tenant->ring[tenant->pieces % NM_SIM_PIECES];
    atomic_store(&piece->ready_ns, self->at_ns);
    atomic_store(&piece->duration_ns, tenant->kernel_ns);
    if (runner->head == runner->tail)
        runner->left_ns = tenant->kernel_ns;
    runner->tail = ++tenant->pieces;
    tenant->launches++;
}

/* -- the driver's calls that the gate makes -- */

static int context_get(nm_cu_context *context)
{
    *context = self->tenant;
    return 0;
}

static int event_create(nm_cu_event *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return 0;
}

static int event_record(nm_cu_event handle, nm_cu_stream stream)
{
    (void)stream;
    spend(RECORD_NS);
    struct event *event = handle;
    *event = (struct event){self->tenant, self->tenant->pieces, self->at_ns};
    return 0;
}

static int event_query(nm_cu_event handle)
{
    struct event *event = handle;
    spend(QUERY_NS);
    return is_done(event->tenant, event->pieces) ? 0 : NM_CUDA_ERROR_NOT_READY;
}

static uint64_t time_of(const struct event *event)
{
    uint64_t end = event->pieces > 0 ? event->tenant->ends_ns[(event->pieces - 1) % ENDS] : 0;
    return end > event->recorded_ns ? end : event->recorded_ns;
}

static int event_elapsed(float *ms, nm_cu_event from, nm_cu_event to)
{
    spend(QUERY_NS);
    *ms = (float)(((double)time_of(to) - (double)time_of(from)) / 1e6);
    return 0;
}

static int change_mode(int *mode)
{
    *mode = 2;
    return 0;
}

void *nm_original_look_up(enum nm_symbol symbol)
{
    switch (symbol) {
    case NM_SYMBOL_cuCtxGetCurrent: return (void *)context_get;
    case NM_SYMBOL_cuEventCreate: return (void *)event_create;
    case NM_SYMBOL_cuEventRecord: return (void *)event_record;
    case NM_SYMBOL_cuEventRecord_ptsz: return (void *)event_record;
    case NM_SYMBOL_cuEventQuery: return (void *)event_query;
    case NM_SYMBOL_cuEventElapsedTime: return (void *)event_elapsed;
    case NM_SYMBOL_cuThreadExchangeStreamCaptureMode: return (void *)change_mode;
    default: return NULL;
    }
}

/* -- programs -- */

static void launch(struct tenant *tenant)
{
    struct nm_launch launch;
    if (tenant->share > 0 && tenant->begin(&launch, tenant, 1, NULL, false) != 0)
        abort();
    launch_kernel(tenant);
    if (tenant->share > 0)
        tenant->end(&launch, 0);
}

static void synchronize(struct tenant *tenant)
{
    if (tenant->share > 0)
        tenant->before_wait(NULL, false, false);
    await(tenant, tenant->pieces);
    if (tenant->share > 0)
        tenant->after_wait(0);
}

static void run_stream(struct tenant *tenant)
{
    for (;;) {
        launch(tenant);
        if (tenant->launches % tenant->pause_ns == 0)
            synchronize(tenant);
    }
}

/* Others would hand the token to it in vain, and the manager would find that it waits for nothing. */
static void expect_no_wait(const struct tenant *tenant)
{
    const struct nm_turns_row *row = &gate.turns->row[tenant->lease.gpu[0].launch_slot];
    if (tenant->share > 0 && atomic_load(&row->in_flight_ns) == 0 &&
        atomic_load(&row->waiting_since_ns) != 0) {
        fprintf(stderr, "tenant %u has no work, and is said to wait\n", tenant->number);
        exit(3);
    }
}

static void run_service(struct tenant *tenant)
{
    uint64_t due_ns = self->at_ns;
    for (;;) {
        due_ns += (uint64_t)(-log(1.0 - draw_from(&tenant->chance)) * (double)tenant->pause_ns);
        if (due_ns > self->at_ns) {
            sleep_until(due_ns, NULL);
            due_ns = self->at_ns;
        }
        for (uint32_t i = 0; i < tenant->burst; i++)
            launch(tenant);
        synchronize(tenant);
        expect_no_wait(tenant);
        if (tenant->samples < SAMPLES)
            tenant->sample_ns[tenant->samples++] = self->at_ns - due_ns;
    }
}

/* Holds the token, and pretends that its work goes on. */
static void run_pretender(struct tenant *tenant)
{
    struct nm_turns *turns = gate.turns;
    int slot = (int)tenant->lease.gpu[0].launch_slot;
    for (;;) {
        uint64_t token = atomic_load(&turns->token);
        if (nm_token_slot(token) != slot)
            atomic_store(&turns->token, nm_token_after(token, slot));
        atomic_fetch_add(&turns->row[slot].beat, 1);
        atomic_fetch_add(&turns->row[slot].used_ns, 1);
        atomic_store(&turns->row[slot].in_flight_ns, 100000);
        sleep_until(self->at_ns + 10000, NULL);
    }
}

/* -- the run -- */

static void begin_fiber(void)
{
    self->body(self->tenant);
    self->at_ns = UINT64_MAX / 2;
    yield();
}

static struct fiber *new_fiber(struct tenant *tenant, uint64_t at_ns)
{
    for (int i = 0; i < FIBERS; i++) {
        struct fiber *fiber = &fibers[i];
        if (fiber->used)
            continue;
        fiber->used = true;
        fiber->tenant = tenant;
        fiber->at_ns = at_ns;
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack;
        fiber->context.uc_stack.ss_size = STACK;
        makecontext(&fiber->context, begin_fiber, 0);
        return fiber;
    }
    abort();
}

static void *symbol_of(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

/* A copy of the library has variables of its own. */
static void load(struct tenant *tenant, const char *path)
{
    char copy[64], command[512];
    snprintf(copy, sizeof copy, "/tmp/nm-model-%d-%u.so", getpid(), tenant->number);
    snprintf(command, sizeof command, "cp '%s' '%s'", path, copy);
    void *library = system(command) == 0 ? dlopen(copy, RTLD_NOW | RTLD_LOCAL) : NULL;
    unlink(copy);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    *(void **)&tenant->begin = symbol_of(library, "nm_launch_begin");
    *(void **)&tenant->end = symbol_of(library, "nm_launch_end");
    *(void **)&tenant->before_wait = symbol_of(library, "nm_launch_before_wait");
    *(void **)&tenant->after_wait = symbol_of(library, "nm_launch_after_wait");
    void (*bind)(const struct nm_lease *);
    *(void **)&bind = symbol_of(library, "nm_model_bind");
    bind(&tenant->lease);
}

static void add_tenant(const char *words, const char *library)
{
    struct tenant *tenant = &tenants[tenant_count];
    tenant->number = tenant_count++;
    tenant->chance = chance + tenant->number;
    if (sscanf(words, "%u:%c:%15[a-z]:%lu:%lu:%lu", &tenant->share, &tenant->class, tenant->kind,
               &tenant->kernel_ns, &tenant->pause_ns, &tenant->stop_ns) < 5) {
        fprintf(stderr, "not SHARE:CLASS:KIND:KERNEL_NS:NUMBER[:STOP_US]: %s\n", words);
        exit(2);
    }
    bool is_burst = strcmp(tenant->kind, "burst") == 0;
    tenant->burst = is_burst ? BURST : 1;
    tenant->stop_ns = tenant->stop_ns > 0 ? BEGIN_NS + 1000 * tenant->stop_ns : UINT64_MAX;
    nm_sim_schedule_join(&device, tenant->number, 1, 0);
    tenant->thread = new_fiber(tenant, BEGIN_NS);
    tenant->thread->body = is_burst || strcmp(tenant->kind, "service") == 0 ? run_service
                           : strcmp(tenant->kind, "pretender") == 0 ? run_pretender
                                                                    : run_stream;
    if (tenant->share == 0)
        return;
    struct nm_launch_slot slot = {.share = tenant->share, .state = NM_LAUNCH_OPEN,
                                  .group = 100 + tenant->number,
                                  .klass = tenant->class == 'l'   ? NM_LAUNCH_LATENCY_SENSITIVE
                                           : tenant->class == 'b' ? NM_LAUNCH_BEST_EFFORT
                                                                  : NM_LAUNCH_NORMAL};
    tenant->lease.gpu_count = 1;
    tenant->lease.gpu[0].gate = gate;
    tenant->lease.gpu[0].launch_slot = (uint32_t)nm_launch_gate_give(&gate, &slot);
    load(tenant, library);
}

static void run(void)
{
    for (;;) {
        struct fiber *next = NULL;
        for (int i = 0; i < FIBERS; i++)
            if (fibers[i].used && (next == NULL || fibers[i].at_ns < next->at_ns))
                next = &fibers[i];
        if (next->at_ns >= end_ns)
            break;
        if (next->at_ns >= beat_at_ns) {
            nm_launch_gate_beat(&gate, beat_at_ns);
            beat_at_ns += 300000000;
        }
        if (next->at_ns >= next->tenant->stop_ns) {
            next->at_ns = UINT64_MAX;
            continue;
        }
        self = next;
        swapcontext(&scheduler, &next->context);
    }
    run_device(end_ns);
}

static int compare(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

static void report(void)
{
    double elapsed_ns = (double)(end_ns - BEGIN_NS);
    printf("gpu %.0f %lu\n", 1e6 * (double)device.busy.ever_ns / elapsed_ns, longest_pause_ns);
    for (struct tenant *tenant = tenants; tenant < tenants + tenant_count; tenant++) {
        uint32_t samples = tenant->samples;
        qsort(tenant->sample_ns, samples, sizeof *tenant->sample_ns, compare);
        struct fiber *helper = tenant->helper;
        uint64_t sleeps = tenant->thread->sleeps + (helper ? helper->sleeps : 0);
        uint64_t busy_ns = tenant->thread->busy_ns + (helper ? helper->busy_ns : 0);
        printf("tenant %.0f %lu %.0f %.0f %lu %lu %lu\n",
               1e6 * (double)runner_of(tenant)->busy.ever_ns / elapsed_ns, tenant->launches,
               helper ? 1e6 * (double)helper->busy_ns / elapsed_ns : 0.0,
               1e6 * (double)busy_ns / elapsed_ns, sleeps,
               samples ? tenant->sample_ns[samples / 2] : 0,
               samples ? tenant->sample_ns[samples * 99 / 100] : 0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 6 || nm_launch_gate_create(&gate) != NM_LAUNCH_GATE_OK)
        return 2;
    end_ns = BEGIN_NS + strtoull(argv[1], NULL, 10) * 1000000;
    chance = strtoull(argv[2], NULL, 10) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    uint64_t window_ns = strtoull(argv[4], NULL, 10) * 1000;
    nm_launch_gate_tune(&gate, window_ns, 0);
    for (int i = 5; i < argc && tenant_count < TENANTS; i++)
        add_tenant(argv[i], argv[3]);
    run();
    report();
    return 0;
}
