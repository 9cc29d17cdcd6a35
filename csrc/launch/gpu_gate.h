/* gpu_gate.h: the state of one GPU's gate in this process, for the files of csrc/launch alone.
 *
 * Knows: the pages, pieces of work. Must not know: hooks.
 *
 * A launch reads the atomics of the first part. All else is guarded by the lock, which no thread
 * holds while it calls a driver function that may block.
 */
#ifndef NM_GPU_GATE_H
#define NM_GPU_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/abi.h"
#include "base/prim.h"
#include "client/client.h"
#include "gate/gate.h"
#include "launch/estimates.h"
#include "launch/launch.h"

#define NM_US UINT64_C(1000)
#define NM_SHORT_GAP_NS (300 * NM_US)
#define NM_LEAD_NS (40 * NM_US) /* a thread wakes so long before the GPU needs it */
#define NM_SOON_NS (2000 * NM_US) /* a thread whose turn is no nearer sleeps without a spin */
#define NM_NO_TOKEN UINT64_MAX

enum {
    NM_PIECE_KERNELS = 16, /* launches of a piece */
    NM_PIECE_STREAMS = 8,  /* streams with an open piece */
    NM_PIECES = 64,        /* closed ones */
    NM_SPARE_EVENTS = 64
};

/* Launches of one stream, with an event behind the last. */
struct nm_piece {
    nm_cu_stream stream;
    nm_cu_context context;
    nm_cu_event start, end; /* start: only where the GPU may have had no work of this process */
    uint64_t estimate_ns;
    struct nm_estimate *kernel[NM_PIECE_KERNELS];
    uint32_t count;
    bool per_thread;
    uint64_t intrusions; /* as counted when it was opened */
    bool disturbed; /* by work of other processes: nothing is learned */
};

struct nm_spare_event {
    nm_cu_event event;
    nm_cu_context context;
};

struct nm_meter {
    struct nm_piece open[NM_PIECE_STREAMS], closed[NM_PIECES];
    _Atomic uint32_t closed_count; /* written with the lock */
    struct nm_spare_event spare[NM_SPARE_EVENTS], last; /* last: the end of the latest piece */
    uint32_t spares;
    uint64_t seen_launches, quiet_since_ns; /* of the keeper */
};

struct nm_gpu_gate {
    const struct nm_shares *_Atomic shares; /* NULL: no gate */
    struct nm_turns *_Atomic turns;
    _Atomic uint32_t slot;
    _Atomic uint64_t open_word;  /* the shares word with which launches pass; 0: ask */
    _Atomic uint64_t held_token; /* NM_NO_TOKEN: not this process's turn, or the turn is used */
    _Atomic uint64_t window_ns, in_flight_ns, launches;
    _Atomic uint64_t until_ns;   /* when the work in flight should end */
    _Atomic nm_cu_stream open_stream; /* of the piece that took the last launch */
    _Atomic bool without_turns;  /* MPS divides the GPU */
    _Atomic bool urgent;         /* latency-sensitive: its bit is set */
    _Atomic uint32_t open_pieces, waiters;
    _Atomic uint32_t short_gaps; /* of 256 pauses, those after which priority should go on */
    _Atomic uint64_t launched_ns; /* the last launch */

    struct nm_lock lock;
    uint32_t generation, companions; /* processes of the task that are active here */
    uint32_t forced; /* launches beyond the window since some work completed */
    _Atomic uint64_t my_token; /* of the turn that began last; written with the lock */
    uint64_t over_since_ns;  /* the turn is used, and waits for the end of its work; 0: it is not */
    uint64_t used_ns, virtual_ns, turn_used_ns, turn_ns;
    _Atomic uint64_t done_ns; /* when the last work was seen complete; written with the lock */
    uint64_t bound_ns;       /* when the process came to these pages, less used_ns then */
    int64_t owed_ns;         /* share of the time waited, less the time used */
    int64_t credit_ns;       /* for priority: share of all time, less the time used */
    uint64_t credit_at_ns;   /* when it grew last */
    bool spent;              /* no credit is left: no priority until there is some again */
    uint64_t manager_beat_ns, manager_seen_ns;
    struct nm_meter meter;
};

static inline struct nm_turns_row *nm_own_row(const struct nm_gpu_gate *gate)
{
    return &atomic_load_explicit(&gate->turns, memory_order_relaxed)
                ->row[atomic_load_explicit(&gate->slot, memory_order_relaxed)];
}

static inline uint64_t nm_own_word(const struct nm_gpu_gate *gate)
{
    const struct nm_shares *shares = atomic_load_explicit(&gate->shares, memory_order_relaxed);
    return atomic_load_explicit(
        &shares->row[atomic_load_explicit(&gate->slot, memory_order_relaxed)].word,
        memory_order_acquire);
}

static inline uint32_t nm_word_state(uint64_t word)
{
    return word >> NM_LAUNCH_STATE_SHIFT & 0xff;
}

static inline uint32_t nm_word_class(uint64_t word)
{
    return word >> NM_LAUNCH_CLASS_SHIFT & 0xff;
}

static inline bool nm_word_has_share(uint64_t word)
{
    return (word & 0xff) > 0;
}

/* For divisions: at least 1. */
static inline uint32_t nm_word_share(uint64_t word)
{
    return nm_word_has_share(word) ? (uint32_t)(word & 0xff) : 1;
}

/* -- binding.c -- */
/* The gate of the current context's GPU, or NULL. */
struct nm_gpu_gate *nm_gate_here(void);
/* The gates of this process: the keeper visits each. */
struct nm_gpu_gate *nm_gate_at(uint32_t row);
/* The gate that has work in it: some gate is bound. */
bool nm_gates_bound(void);

/* -- meter.c -- each takes the lock, except where its comment names it -- */
/* Before a launch into an empty GPU that begins a piece: a start event in its stream. */
void nm_meter_begin(struct nm_gpu_gate *gate, struct nm_launch *launch);
void nm_meter_add(struct nm_gpu_gate *gate, struct nm_launch *launch);
/* The launch failed. */
void nm_meter_withdraw(struct nm_gpu_gate *gate, struct nm_launch *launch);
/* Charges what is complete. False: another thread does it now. */
bool nm_meter_poll(struct nm_gpu_gate *gate);
/* Closes the open pieces of a stream, or of all. */
void nm_meter_close(struct nm_gpu_gate *gate, nm_cu_stream stream, bool per_thread, bool all);
/* Charges the open pieces of a stream, or of all, by their estimates: no event can be recorded. */
void nm_meter_drop(struct nm_gpu_gate *gate, nm_cu_stream stream, bool all);
void nm_meter_forget(struct nm_gpu_gate *gate);
/* With the lock: whether a kernel in flight has never been measured. */
bool nm_meter_guesses(const struct nm_gpu_gate *gate);
/* With the lock: the unfinished pieces take far longer than was expected. */
void nm_meter_raise_estimates(struct nm_gpu_gate *gate);
/* The keeper's: open pieces without a launch for a while count as done. */
void nm_meter_retire_quiet(struct nm_gpu_gate *gate, uint64_t now_ns);

/* -- token.c -- */
enum nm_answer {
    NM_PASS,
    NM_REFUSED,
    NM_WAIT_CLOSED,
    NM_WAIT_SUSPENDED,
    NM_WAIT_URGENT, /* latency-sensitive work is under way */
    NM_WAIT_WINDOW, /* own work in flight */
    NM_WAIT_DRAIN,  /* the turn is used: the end of the own work */
    NM_WAIT_TURN
};

/* One thread's wait, and what it has seen of the others. */
struct nm_turn_wait {
    uint64_t began_ns, last_ns; /* 0: it has not waited yet */
    bool for_others;            /* the last answer was not for its own work in flight */
    bool starved;               /* launches pass without the token, as far as they fit */
    uint64_t token, used_ns, progress_ns;
    uint64_t launches, idle_since_ns;
    uint32_t beat, urgent_beats;
    uint64_t beat_ns, urgent_ns;
    uint64_t own_in_flight_ns, own_progress_ns;
};

enum nm_answer nm_turn_ask(struct nm_gpu_gate *gate, struct nm_turn_wait *wait,
                           uint64_t room_ns, uint64_t now_ns);
/* How long a thread that waits for others may sleep: while the holder has work in flight the GPU is
   in use, and the holder's lease goes on. */
uint64_t nm_turn_look_ns(const struct nm_gpu_gate *gate, const struct nm_turn_wait *wait,
                         uint64_t now_ns);
/* With the lock: the turn ends if it is used and another process should have it, and so does
   priority without work. */
void nm_turn_check(struct nm_gpu_gate *gate, uint64_t now_ns);
/* The keeper's visit; returns how long it may sleep. */
uint64_t nm_turn_tend(struct nm_gpu_gate *gate, uint64_t now_ns);
/* With the lock: charges measured time. own_ns: of it, without the work of others in between. */
void nm_turn_charge(struct nm_gpu_gate *gate, uint64_t used_ns, uint64_t own_ns);
/* Whether other processes have work in flight: times measured now are not this process's alone. */
bool nm_turn_is_disturbed(const struct nm_gpu_gate *gate);
/* The other processes on this GPU that may launch. */
uint32_t nm_turn_others(const struct nm_gpu_gate *gate);
uint64_t nm_turn_intrusions(const struct nm_gpu_gate *gate);
/* Whether the urgent bits of others are set. */
uint64_t nm_turn_urgent_bits(const struct nm_gpu_gate *gate);

/* -- gate_wait.c -- */
/* CUDA_SUCCESS, or the error with which the caller ends: refused, or ended by Ctrl-C. */
int nm_turn_await(struct nm_gpu_gate *gate, uint64_t room_ns);

enum nm_purpose {
    NM_FOR_MEMORY, /* while the process is suspended */
    NM_FOR_WORK    /* until all its work is known to be done, or it is not suspended any more */
};

/* The same for a process that may be suspended. */
int nm_hold_await(enum nm_purpose purpose);
/* Until its hold changes, at most that long. */
void nm_hold_sleep(uint64_t timeout_ns);

/* -- suspended_calls.c -- */
void nm_away_forget(void);

/* -- keeper.c -- */
void nm_keeper_wake(void);
void nm_keeper_forget(void);

/* -- capture_hooks.c -- */
bool nm_is_captured(nm_cu_stream stream, bool per_thread);
bool nm_captures_under_way(void);
void nm_captures_forget(void);

#endif
