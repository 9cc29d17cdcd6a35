/*
 * nodemgr-supervisor: starts batch jobs as their users, and keeps what became of them. What its parts share.
 *
 * Knows: the directory of one attempt, and how a job's processes are found. Must not know: GPUs, quotas, queues, the store.
 *
 * One program, two lives. The launcher (launcher.c) has the rights that the manager gave up; it is told which attempt to
 * begin and forks its supervisor. The supervisor (supervise.c) is the parent of everything that the job starts, outlives the
 * manager and the launcher, and records how the job ended.
 *
 * An attempt is a directory JOBS/JOB/ATTEMPT of the manager's, complete when it appears:
 *   order    what is to be run (order.c); nothing else in it is believed
 *   free     renamed to claim.PID.TICKS by the supervisor that begins the attempt, or by a manager that gives it up: of all who
 *            try only one succeeds, so nothing begins twice, and the name says whose it is; no disk is ever too full for it
 *   record   two lines at fixed places, written over blanks: when the job's process began, and how it ended
 *   log      what the job wrote; it belongs to the job's user
 *   limit    the time that the job may take, in milliseconds; not there: no limit
 */
#ifndef NM_JOBS_H
#define NM_JOBS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    NM_JOB_NAME_BYTES = 96, /* JOB/ATTEMPT with its NUL */
    NM_JOB_WHY_BYTES = 256,
    NM_RECORD_LINE_BYTES = 512,
    NM_JOB_ASKS = SIGUSR1, /* the manager to a supervisor: end the job */
    NM_JOB_LIMIT = SIGUSR2 /* look at `limit` again */
};

/* -- order.c -- */

struct nm_order {
    const char *job, *user, *cwd; /* job: JOB:ATTEMPT */
    uid_t uid;
    gid_t gid;
    long long grace_ms, log_bytes; /* log_bytes 0: as much as the job likes */
    char **argv, **environ;
};

/* The order in a directory, which its owner alone may have written. false: `why` says what is wrong with it. What it points to
   lives as long as the process. */
bool nm_order_read(int directory, struct nm_order *order, char why[NM_JOB_WHY_BYTES]);

/* -- become.c -- */

/* Where a job's process failed before it ran anything of the job's. */
enum nm_stage { NM_AT_USER, NM_AT_GROUPS, NM_AT_IDENTITY, NM_AT_CWD, NM_AT_PROGRAM, NM_AT_INTERPRETER };

struct nm_failure {
    enum nm_stage stage;
    int error;
};

/* In a forked child: becomes the job. Returns only if it could not. */
struct nm_failure nm_become(const struct nm_order *order, int log, pid_t parent);
/* The same in words; true: trying again cannot help. */
bool nm_failure_words(const struct nm_order *order, struct nm_failure failure, char why[NM_JOB_WHY_BYTES]);

/* -- below.c -- */

/* Whom a signal to everything below this process leaves out. */
struct nm_spared {
    pid_t alone;        /* this process, but not what it started; 0: nobody */
    const pid_t *trees; /* these, with everything below them */
    size_t tree_count;
};

struct nm_swept {
    int found, refused; /* refused: not ours to signal */
};

/* Sends a signal to every process below this one. found is -1 where that cannot be known now. */
struct nm_swept nm_signal_below(int number, struct nm_spared spared);
/* When a process began, in clock ticks after boot; 0: there is none. */
unsigned long long nm_start_ticks(pid_t pid);

/* -- log.c -- */

struct nm_log {
    int fd;               /* to write to; -1: none */
    long long most_bytes; /* 0: any */
    long long seen_bytes, next_ms;
};

/* Looks after it where that is due; returns when to look again, -1: never. */
long long nm_log_look(struct nm_log *log);
/* The last look, at what was written since the one before. */
void nm_log_close(struct nm_log *log);

/* -- supervise.c -- */

/* Supervises the attempt `name` in `directory` until nothing of it runs; `manager` is a socket for one word that it runs, or
   -1. Both are taken over. Returns the exit status of the process. */
int nm_supervise(int directory, const char *name, int manager);

/* Milliseconds of a clock that nobody sets. */
long long nm_monotonic_ms(void);

/* -- launcher.c -- */

/* Serves the manager at the other end of `socket`, or whoever of this user connects to it (`listens`), until the manager is
   gone and no supervisor of its own runs any more. */
int nm_launch(int socket, bool listens, const char *jobs);

/* -- main.c -- */

/* What ps shows of this process. */
void nm_set_title(const char *attempt);

#endif
