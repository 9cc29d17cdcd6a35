/* client.h: one process's side of a lease: it asks, waits, holds, beats, comes back after a lost
 * connection, releases.
 *
 * Knows: client.conf, the wire, the ledger, the environment variables of CONTRACT "Environment
 * variables".
 * Must not know: CUDA (the shim hooks it), Python (which calls the nodemgr_ functions through
 * ctypes).
 *
 * A process has one lease at most, so the client is one static thing in it. All functions may be
 * called from any thread (not from signal handlers). None blocks longer than its timeout. A forked
 * child starts at NODEMGR_NONE.
 */
#ifndef NM_CLIENT_H
#define NM_CLIENT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/prim.h"
#include "ledger/ledger.h"

enum nodemgr_state {
    NODEMGR_NONE = 0,       /* no lease, and none asked for */
    NODEMGR_WAITING = 1,    /* asked; poll */
    NODEMGR_HELD = 2,
    NODEMGR_DENIED = 3,     /* line: why */
    NODEMGR_LOST = 4,       /* fenced: held once; a later begin asks anew */
    /* no_manager=wait: poll goes on trying; =error: final, a later begin asks anew */
    NODEMGR_NO_MANAGER = 5,
    NODEMGR_CPU = 6,        /* the variables or a policy say CPU: no device */
    NODEMGR_UNMANAGED = 7   /* no client.conf, NODEMGR_OFF, or a setuid program: do nothing */
};

/* -- for Python, through ctypes -- */
NM_API int nodemgr_abi(void);       /* 1 */
NM_API int nodemgr_preloaded(void); /* 1: our dlsym is the process's. Defined by the shim. */
NM_API int nodemgr_managed(void);   /* 1: a client.conf was found (read anew at each call) */
/* of client.conf; length or -1 */
NM_API int nodemgr_setting(const char *key, char *out, size_t size);
/* -1 = not said (NODEMGR_GPUS, NODEMGR_MEMORY, NODEMGR_WAIT then hold). command may be NULL
 * (/proc/self/cmdline). Sends the request; idempotent while waiting or held. Returns a state. */
NM_API int nodemgr_begin(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command);
/* Waits up to timeout_ms for the state or the line to change since this thread's last poll (or a
 * signal); returns the state. Returns at once where nothing is under way. */
NM_API int nodemgr_poll(int timeout_ms, char *line, size_t size);
NM_API int nodemgr_cancel(void);    /* gives up waiting: NONE */
NM_API int nodemgr_release(void);   /* this process leaves the lease: NONE */
NM_API int nodemgr_state(char *line, size_t size); /* no waiting, no talking */
/* KEY=value lines: lease, task, env, gpus, visible, limits, rows, enforced (0: a fixed cap of
 * this process over UDP, without a ledger shared with others). Length, or -1 where nothing is
 * held. */
NM_API int nodemgr_lease(char *out, size_t size);
/* Length of the JSON in out; or -1, and out says why in one line. */
NM_API int nodemgr_ask(const char *what, const char *argument, char *out, size_t size,
                       int timeout_ms);
/* The same, where the answer may bring a file: *fd gets it, the caller's to close; -1 where none
   came (over UDP none ever does). */
NM_API int nodemgr_ask_file(const char *what, const char *argument, char *out, size_t size,
                            int timeout_ms, int *fd);
NM_API void nodemgr_set_waiter(int (*waiter)(void)); /* see nm_client_waiter */
NM_API void nodemgr_publish_env(const char *name, const char *value); /* value NULL removes */

/* -- for the shim -- */

/* One GPU of the lease. */
struct nm_lease_gpu {
    char uuid[NM_UUID_BYTES];
    uint32_t row;
};

/* What is held. Constant once published; lives for ever (a pointer to it never dangles). */
struct nm_lease {
    uint32_t number; /* grows with each lease of this process; an allocation remembers it */
    uint32_t slot, generation;
    uint32_t gpu_count;
    struct nm_lease_gpu gpu[NM_LEDGER_ROWS];
    struct nm_ledger ledger;
};

/* the session's; in a forked child perhaps still the parent's */
NM_LOCAL extern _Atomic(const struct nm_lease *) nm_held_lease;
/* NULL: nothing held (or a forked child that has not asked yet). */
static inline const struct nm_lease *nm_client_lease(void)
{
    const struct nm_lease *lease = atomic_load_explicit(&nm_held_lease, memory_order_acquire);
    return lease != NULL && !nm_forked() ? lease : NULL;
}
/* held or not any more; NULL: this process never had one */
const struct nm_lease *nm_client_latest_lease(void);
/* ledger row, or -1: not of this lease. "GPU-..." as NVML writes it */
int nm_client_row(const struct nm_lease *lease, const char *uuid);
/* Charges the present lease: an nm_reserve. A stalled slot beats first and waits up to 1 s for
 * the manager's word, and so does one that is fenced before that word has come. *number gets the
 * lease's number, for nm_client_discharge. No lease: NM_FENCED. */
int nm_client_charge(uint32_t row, uint64_t bytes, uint32_t *number);
/* Gives back what nm_client_charge took under that number; a lease that is over is left alone. */
void nm_client_discharge(uint32_t number, uint32_t row, uint64_t bytes);

int (*nm_client_waiter(void))(void); /* what nodemgr_set_waiter said, or NULL */
/* Asks and waits in C, showing one line on stderr; returns the final state. Signals are the
 * program's own affair: one that comes meanwhile ends the wait only where `interrupted` says so;
 * it is asked whenever the wait wakes up. */
int nm_client_acquire_blocking(bool (*interrupted)(void));
/* Called about once a second while a lease is held, by the thread that beats. */
void nm_client_set_chore(void (*chore)(void));
void nm_client_tell_lost(void); /* once a lease: why it is lost, and what follows */

#endif
