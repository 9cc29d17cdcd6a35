/* session.h: the session of a process, for the files of csrc/client alone.
 *
 *   client.c   the API
 *   request.c  the request
 *   session.c  the lock, states, forks, waiting threads
 *   talk.c     packets to the manager, and when each is due
 *   answers.c  packets from the manager
 *   lease.c    the lease
 *   launch_files.c  the launch gates of a grant
 */
/* One lock guards the session (nm_enter, nm_leave); the functions below are called with it held. A
   thread leaves it before it waits or writes to stderr. */
#ifndef NM_SESSION_H
#define NM_SESSION_H

#include "client/channel.h"
#include "client/client.h"
#include "client/request.h"
#include "conf/conf.h"
#include "wire/wire.h"

#define NM_MS UINT64_C(1000000)
#define NM_SECOND (1000 * NM_MS)
#define NM_MAX_WAIT_MS (UINT64_C(1) << 40) /* as nanoseconds it still fits into 64 bits */
#define NM_LINE_BYTES NM_PACKET_BYTES
#define NM_TOKEN_DIGITS 32
#define NM_SAYINGS 4

enum nm_event {
#define NM_TRANSITION(event, before, after, reason) NM_EVENT_##event,
#include "client/transitions.def"
};

/* Each message that needs an answer has a row. It is sent when it is due, repeated over UDP, and
   sent once more on a new connection, until it is answered. */
enum nm_pending {
    NM_HELLO,
    NM_REJOIN,
    NM_CANCEL,
    NM_ACQUIRE,
    NM_RELEASE,
    NM_ASK,
    NM_PENDING_COUNT
};

struct nm_pending_row {
    bool wanted;
    uint64_t rid, due_ns, interval_ns;
};

struct nm_question {
    bool busy, failed;
    char what[65], argument[512];
    char *out; /* the caller's buffer */
    int *fd;   /* the caller's; NULL: files that come are closed */
    size_t size, length;
    uint64_t next; /* the next part */
};

/* The files of a launch gate, mapped; gate.shares NULL: none. */
struct nm_launch_files {
    struct nm_launch_gate gate;
    struct nm_file_id shares_id, turns_id;
};

/* The variables before a grant of this process set them: the next request reads these. */
struct nm_original {
    bool saved, has_cuda, has_mark;
    char cuda[NM_VISIBLE_BYTES], mark[NM_VISIBLE_BYTES], published[NM_VISIBLE_BYTES];
};

struct nm_session {
    struct nm_lock lock;
    int cancel_state;        /* of the thread that holds the lock, from before it took it */
    _Atomic uint32_t events; /* grows with each change of state, line or polling thread */
    enum nodemgr_state state;
    bool trying;       /* in NO_MANAGER: the client tries again */
    unsigned tries;    /* of this request, to take its grant */
    bool told_refusal; /* an event that transitions.def does not allow was reported */
    uint32_t changes; /* of state or line */
    char line[NM_LINE_BYTES];
    char fence_reason[NM_LINE_BYTES];
    unsigned sayings; /* lines for stderr, written when the lock is left */
    char saying[NM_SAYINGS][NM_LINE_BYTES];
    _Atomic uint32_t speaking; /* threads that write to stderr: an exit lets them finish */

    struct nm_conf conf;
    struct nm_request request;
    struct nm_original original;
    char task[NM_TOKEN_DIGITS + 1];

    struct nm_channel channel;
    struct nm_pending_row pending[NM_PENDING_COUNT];
    struct nm_question question;
    /* refused: the last connect failed, for the reason in `fault` */
    bool refused, told_away;
    bool timed_out; /* the last refusal was the end of the request's time limit */
    /* a wait has ended without a grant, and no_gpu=cpu: later requests do not wait, until one is
       granted */
    bool waited_in_vain;
    /* silent since: 0 while the manager answers */
    uint64_t retry_at_ns, backoff_ns, opened_ns, silent_since_ns;
    uint64_t beat_ns, next_beat_ns;
    /* of the task's work, as the program reports it; and as the manager has it. Total 0: unknown */
    uint64_t progress_done, progress_total, told_done, told_total;
    uint64_t beats;   /* written into the ledger so far; the word differs at each beat */
    bool unsuspendable;
    char fault[128];

    bool pumping, thread;
    uint32_t pump_token;
    int pump_fd, orphan_fd; /* polled now; to be closed by the polling thread when it wakes */
    uint64_t pump_until_ns;

    struct nm_launch_files launch_files[NM_LEDGER_ROWS]; /* by ledger row: the latest mappings */
    struct nm_ledger ledger;                /* the latest mapping */
    struct nm_ledger private_ledger;        /* for UDP */
    struct nm_file_id limits_id, usage_id;
    uint32_t lease_number, lease_next, lease_first; /* first: entries before it are the parent's */
    /* number of the lease that was reported as lost */
    uint32_t told_lost;
    uint32_t given_back; /* number of the lease whose release this process asked for */
    char lease_name[65], visible[NM_VISIBLE_BYTES];
};

extern struct nm_session nm_session;

/* -- session.c -- */
bool nm_is_prepared(void); /* has this process called any function of the client? */
void nm_enter(void);       /* takes the lock; resets the session in a forked child */
void nm_leave(void);       /* leaves it, and writes the lines of nm_say_later to stderr */
void nm_say_later(const char *text);
void nm_wake(void);        /* all threads that wait check the session again */
/* The state after the event by transitions.def; the present one if no row allows the event. */
enum nodemgr_state nm_next_state(enum nm_event event);
void nm_change_state(enum nm_event event, const char *line);
bool nm_underway(void);    /* a request waits for its answer */
bool nm_busy(void);        /* something needs a connection */
void nm_stop_asking(void);
void nm_become_final(enum nm_event event, const char *line);
void nm_become_cpu(enum nm_event event, const char *line);
/* as no_gpu decides; waited: to the end of the time limit */
void nm_become_refused(const char *reason, bool waited);
void nm_publish_visible(const char *value);
/* For MPS, which the driver asks at its start. A lower percentage of the user stays. */
void nm_publish_threads(uint64_t percent);
/* Does what is due, then waits for packets or for other threads' changes until then at most. Leaves
   the lock meanwhile. False: a signal came. */
bool nm_pump(uint64_t until_ns);
/* pumps until the row is answered or the time is over */
void nm_await_answer(enum nm_pending row, uint64_t timeout_ns);
void nm_start_thread(void);      /* the thread that beats; at most one */

/* -- lease.c -- */
/* false: not usable, for the reason in `fault`. again: a grant of the lease that is held */
bool nm_install_grant(struct nm_packet *packet, bool again);
void nm_become_lost(const char *reason);
/* reports once a lease why it is lost, and what follows */
void nm_tell_lost(void);
/* the present or an earlier one of this process, or NULL */
const struct nm_lease *nm_lease_numbered(uint32_t number);
/* in the environment's ledger, which the manager reads; not in a private one */
bool nm_is_in_ledger(const struct nm_lease *lease);

#define NM_MOST_TRIES 3 /* to take a grant, whose GPUs count as held meanwhile; to open a socket */

/* -- session.c, too -- */
/* Publishes the lease and its hold word; NULL: none is held. */
void nm_hold_lease(const struct nm_lease *lease);

/* -- launch_files.c -- */
bool nm_is_gated(void); /* nm_client_gated, with the lock */
/* Maps the files of a GPU's gate, unless they are mapped already. Takes neither descriptor. */
bool nm_map_launch_gate(uint32_t row, int shares_fd, int turns_fd);

/* -- talk.c -- */
uint64_t nm_fresh_rid(void);
void nm_want(enum nm_pending row, uint64_t rid);
void nm_done(enum nm_pending row);
/* all that is still wanted, on a new connection or to a new epoch; a holder rejoins */
void nm_say_all_again(void);
void nm_send_when_due(enum nm_pending row, uint64_t now_ns);
void nm_set_beat(uint64_t beat_ms); /* 0 or absurd: the default */
/* of a holder on the UNIX socket: a word in the ledger; otherwise a packet */
void nm_beat(uint64_t now_ns);
void nm_keep_place(uint64_t now_ns); /* after WAIT: from now on a process that waits beats */
void nm_drop_channel(void);
/* the connection is lost; the client connects again later */
void nm_lost(const char *fault, uint64_t now_ns);
void nm_step(void);              /* does what is due */
uint64_t nm_next_due_ns(void);   /* when nm_step has something to do again */

/* -- answers.c -- */
void nm_receive_all(void);

/* -- request.c -- */
void nm_start_request(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command,
                      bool starts);

#endif
