/* client.h: the client in one process: it requests a lease, waits, holds it, beats, rejoins after a
 * lost connection, releases.
 *
 * Knows: client.conf, the wire, the ledger, the environment variables of a request.
 * Must not know: CUDA (the shim hooks it), Python (which calls the nodemgr_ functions by ctypes).
 *
 * A process has at most one lease, so the client is static. All functions may be called from any
 * thread, but not from signal handlers. None blocks longer than its timeout. A forked child starts
 * at NODEMGR_NONE.
 */
#ifndef NM_CLIENT_H
#define NM_CLIENT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/prim.h"
#include "gate/gate.h"
#include "ledger/ledger.h"

enum nodemgr_state {
    NODEMGR_NONE = 0,       /* no lease, no request */
    NODEMGR_WAITING = 1,    /* requested; poll */
    NODEMGR_HELD = 2,
    NODEMGR_DENIED = 3,     /* the line has the reason */
    NODEMGR_LOST = 4,       /* the lease was taken away; a later begin sends a new request */
    /* no_manager=wait: poll tries again; =error: final, a later begin sends a new request */
    NODEMGR_NO_MANAGER = 5,
    NODEMGR_CPU = 6,        /* the variables or a policy say CPU: no device */
    /* no client.conf, NODEMGR_OFF, or a setuid program: the client does nothing */
    NODEMGR_UNMANAGED = 7
};

/* -- for Python, through ctypes -- */
NM_API int nodemgr_abi(void);       /* 1 */
NM_API int nodemgr_preloaded(void); /* 1: the shim's dlsym is the process's. Defined by the shim. */
NM_API int nodemgr_managed(void);   /* 1: client.conf exists; read at each call */
/* a value of client.conf; its length, or -1 */
NM_API int nodemgr_setting(const char *key, char *out, size_t size);
/* -1: not given; NODEMGR_GPUS, NODEMGR_MEMORY, NODEMGR_WAIT then decide. command may be NULL
 * (/proc/self/cmdline). Sends the request; does nothing while the process waits or holds.
 * Returns a state. */
NM_API int nodemgr_begin(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command);
/* The same by the variables alone, for the program that this process is about to become (exec): the
   lease lasts as long as the process, which need not beat until the program asks for itself. */
NM_API int nodemgr_begin_program(const char *command);
NM_API int nodemgr_timed_out(void); /* 1: the last refusal was the end of the wait's limit */
/* Waits up to timeout_ms for a change of the state or the line, or for a signal. Returns the
   state; at once if no request is under way. */
NM_API int nodemgr_poll(int timeout_ms, char *line, size_t size);
NM_API int nodemgr_cancel(void);    /* stops waiting: NONE */
NM_API int nodemgr_release(void);   /* this process leaves the lease: NONE */
NM_API int nodemgr_state(char *line, size_t size); /* neither waits nor sends */
/* KEY=value lines: lease, task, env, gpus, visible, limits, rows, enforced (0: over UDP, where a
   fixed limit for this process alone replaces the shared ledger). Length, or -1 without a lease. */
NM_API int nodemgr_lease(char *out, size_t size);
/* Length of the JSON in out; or -1, and out has the reason in one line. */
NM_API int nodemgr_ask(const char *what, const char *argument, char *out, size_t size,
                       int timeout_ms);
/* The same for an answer that may bring a file: *fd gets it, and the caller closes it. -1: none
   came (over UDP none does). */
NM_API int nodemgr_ask_file(const char *what, const char *argument, char *out, size_t size,
                            int timeout_ms, int *fd);
/* The task has done this many of `total` parts of its work; 0: their number is not known. It is
   sent with the beats, at most once a second. */
NM_API void nodemgr_progress(uint64_t done, uint64_t total);
/* 1: number 2 is the stderr that the process began with. adopt: the file that is there now becomes
   its stderr first, where a program is known to show what it receives there. */
NM_API int nodemgr_is_stderr(int adopt);
/* At its normal end this process writes its exit status, one byte, to the socket fd. 0: it will. */
NM_API int nodemgr_report_status(int fd);
NM_API void nodemgr_set_waiter(int (*waiter)(void)); /* see nm_client_waiter */
NM_API void nodemgr_publish_env(const char *name, const char *value); /* value NULL removes */

/* -- for the shim -- */

/* One GPU of the lease. */
struct nm_lease_gpu {
    char uuid[NM_UUID_BYTES];
    uint32_t row;
    uint32_t launch_slot;       /* in the launch gate */
    struct nm_launch_gate gate; /* shares NULL: launches have no gate */
};

/* A lease. Constant once published, and never freed: a pointer to it stays valid. */
struct nm_lease {
    uint32_t number; /* grows with each lease of this process; an allocation remembers it */
    uint32_t slot, generation;
    uint32_t gpu_count;
    struct nm_lease_gpu gpu[NM_LEDGER_ROWS];
    struct nm_ledger ledger;
};

/* the session's; in a forked child perhaps still the parent's */
NM_LOCAL extern _Atomic(const struct nm_lease *) nm_held_lease;
/* NULL: no lease held, or a forked child without a request. */
static inline const struct nm_lease *nm_client_lease(void)
{
    const struct nm_lease *lease = atomic_load_explicit(&nm_held_lease, memory_order_acquire);
    return lease != NULL && !nm_forked() ? lease : NULL;
}
/* The word in which the ledger says that the driver may hold the calls of this process (enum
   nm_hold). Without a lease it is a zero of this process. */
NM_LOCAL extern const _Atomic uint32_t *_Atomic nm_hold_word;
static inline __attribute__((always_inline)) enum nm_hold nm_hold(void)
{
    const _Atomic uint32_t *word = atomic_load_explicit(&nm_hold_word, memory_order_relaxed);
    return (enum nm_hold)atomic_load_explicit(word, memory_order_acquire);
}
/* held or no longer held; NULL: this process never had one */
const struct nm_lease *nm_client_latest_lease(void);
/* Whether the launches of this process pass the gate (client.conf, gate=1). The first call
   decides for the life of the process and of its forked children, because programs keep the
   pointers that they were given. */
bool nm_client_gated(void);
/* Asks the manager to resume this suspended process. Returns at once. */
void nm_client_ask_resume(void);
/* the row in the ledger, or -1: not of this lease. uuid: "GPU-...", as NVML writes it */
int nm_client_row(const struct nm_lease *lease, const char *uuid);
/* Charges the present lease (nm_ledger_reserve). If its slot is stalled, the process beats and
 * waits until the manager has seen it. If the slot is fenced, it waits up to 1 s for the reason.
 * *number gets the lease's number, for nm_client_discharge. No lease: NM_FENCED. */
int nm_client_charge(uint32_t row, uint64_t bytes, uint32_t *number);
/* Returns the bytes that nm_client_charge took under that number. A lease that ended stays as it
   is. */
void nm_client_discharge(uint32_t number, uint32_t row, uint64_t bytes);

/* Whether the driver cannot suspend this process: in the ledger at once, where there is one. */
void nm_client_set_unsuspendable(bool unsuspendable);

int (*nm_client_waiter(void))(void); /* set by nodemgr_set_waiter, or NULL */
/* Requests and waits in C, with one line on stderr; returns the final state. A signal ends the
   wait only if `interrupted` returns true. It is called whenever the wait wakes up. */
int nm_client_acquire_blocking(bool (*interrupted)(void));
/* Called by the beating thread, about once a second while a lease is held. */
void nm_client_set_chore(void (*chore)(void));
void nm_client_tell_lost(void); /* reports once a lease why it is lost, and what follows */

#endif
