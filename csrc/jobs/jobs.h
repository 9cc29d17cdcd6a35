/*
 * jobs.h: one attempt of a batch job: starts its process, keeps its output, records its end.
 * Part of nodemgr-supervisor (csrc/supervisor) and of nodemgr-runner (csrc/runner).
 *
 * Knows: the directory of one attempt, and how a job's processes are found. Must not know: GPUs,
 * quotas, queues, the store.
 *
 * An attempt is a directory JOBS/JOB/ATTEMPT of the manager's, complete when it appears:
 *   order    what is to be run (order.c); nothing else in it is believed
 *   free     renamed to claim.PID.TICKS by the supervisor that begins the attempt, or by a manager
 *            that gives it up: of all who try only one succeeds, so nothing begins twice, and the
 *            name says whose it is; no disk is ever too full for it
 *   record   two lines at fixed places, written over blanks: when the job's process began, and how
 *            it ended. Where the disk does not take the end, the claim is renamed to
 *            claim.PID.TICKS.ended.WALL.EXIT.SIGNAL.HOPELESS; where it takes neither, the
 *            supervisor tries on and lives until it does, or until it is asked to end
 *   log      what the job wrote to its pipe (log.c)
 *   limit    the time that the job may take, in milliseconds, or blanks; written over in place
 *
 * In a container there is no launcher and no directory, but a runner (csrc/runner), which is told
 * the same by the manager and whose supervisors are handed the same files, open.
 */
#ifndef NM_JOBS_H
#define NM_JOBS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    NM_JOB_NAME_BYTES = 96, /* JOB/ATTEMPT with its NUL */
    NM_JOB_WHY_BYTES = 256,
    NM_RECORD_LINE_BYTES = 512,
    NM_LIMIT_BYTES = 32,
    NM_EXIT_NOT_OURS = 3, /* of a supervisor: somebody else has claimed the attempt */
    NM_EXIT_UNRECORDED = 4,
    NM_JOB_ASKS = SIGUSR1, /* the manager to a supervisor: end the job */
    NM_JOB_LIMIT = SIGUSR2 /* look at `limit` again */
};

/* Of a clock that cannot be set. */
static inline long long nm_monotonic_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* glibc re-versioned fstat in 2.33, and what runs in containers loads into older ones; the
   system call fills the same struct on 64-bit Linux. */
static inline bool nm_file_status(int fd, struct stat *status)
{
    return syscall(SYS_fstat, fd, status) == 0;
}

/* Keeps how an attempt ended, in a few words of digits, points and dashes, where the record
   cannot. */
typedef bool nm_witness(const char *outcome);

/* The files of one attempt, open. The order and the log: below 0 an errno, why they are not. */
struct nm_files {
    int order, record, log, limit;
    nm_witness *witness; /* NULL: none */
    /* of a container: the job runs as whoever supervises it, and the order is what the kernel
       handed over */
    bool is_inside;
};

/* -- order.c -- */

struct nm_order {
    const char *job, *user, *cwd; /* job: JOB:ATTEMPT */
    uid_t uid;
    gid_t gid;
    long long grace_ms, log_bytes; /* log_bytes 0: as much as the job likes */
    mode_t umask;
    char **argv, **environ;
    bool keeps_identity; /* the job runs as its supervisor does */
};

/* The order, which outside of containers our own user alone may have written. false: `why` says
   what is wrong with it. What it points to lives as long as the process. */
bool nm_order_read(const struct nm_files *files, struct nm_order *order,
                   char why[NM_JOB_WHY_BYTES]);
/* Decimal digits and nothing else, up to `most`. */
bool nm_job_number(const char *text, long long most, long long *value);

/* -- become.c -- */

/* Where a job's process failed before it ran anything of the job's. */
enum nm_stage {
    NM_AT_USER,
    NM_AT_GROUPS,
    NM_AT_IDENTITY,
    NM_AT_CWD,
    NM_AT_PROGRAM,
    NM_AT_INTERPRETER
};

/* What ended an attempt, as its record numbers it (nodemgr/edge/executor/attempt_directory.py,
   CAUSES). */
enum nm_cause { NM_OWN, NM_CANNOT_RUN, NM_TIME_LIMIT, NM_NOT_STARTED, NM_NODE_DOWN };

struct nm_failure {
    enum nm_stage stage;
    int error;
};

/* In a forked child: becomes the job. Returns only if it could not. */
struct nm_failure nm_become(const struct nm_order *order, int output, pid_t parent);
/* The same in words, and its cause. */
enum nm_cause nm_failure_words(const struct nm_order *order, struct nm_failure failure,
                               char why[NM_JOB_WHY_BYTES]);

/* -- below.c -- */

/* The processes that a signal to everything below this process leaves out. */
struct nm_spared {
    pid_t alone;        /* this process, but not what it started; 0: none */
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
/* The number of its session with the kernel's audit; 0: it has none. */
unsigned long nm_audit_session(pid_t pid);

/* -- log.c -- */

/* The process that keeps a job's output. */
struct nm_log {
    pid_t keeper;
    int control; /* the keeper ends when this does; -1: there is no keeper */
};

/* Begins to keep output in `file`, of which at most most_bytes stay on the disk (0: any number).
   Returns the descriptor to which the job writes, or -1 with errno. `file` stays the caller's. */
int nm_log_begin(struct nm_log *log, int file, long long most_bytes);
/* What was written so far is in the file; the output is closed. */
void nm_log_end(struct nm_log *log);

/* -- supervise.c -- */

/* What the manager is sent when the job runs. */
struct nm_word {
    char bytes[512];
    size_t size;
};
/* `began`: "WALL_NS PID TICKS". */
typedef struct nm_word nm_running_word(const char *began);

/* A descriptor of the signals that a supervisor hears; -1: it cannot. All are blocked from now
   on. */
int nm_take_signals(void);
/* Supervises the attempt until nothing of it runs; `manager` is a socket for one packet when it
   runs, or -1. All is taken over. Returns the exit status of the process. */
int nm_supervise(const struct nm_files *files, int signals, int manager,
                 nm_running_word *running_word);

/* -- children.c -- */

struct nm_child {
    pid_t pid;
    char name[NM_JOB_NAME_BYTES];
};

/* The supervisors of whoever forks them: a subreaper, so what one that was killed has left
   becomes its child, too. */
struct nm_children {
    struct nm_child *rows;
    size_t count, room;
    bool strays; /* there may be children that are no supervisors */
};

bool nm_children_make_room(struct nm_children *children); /* for one more; false: no memory */
void nm_children_add(struct nm_children *children, pid_t pid, const char *name);
bool nm_children_has(const struct nm_children *children, const char *name);
/* Waits for those that have ended, and ends what one that was killed has left. */
void nm_children_reap(struct nm_children *children);

/* -- inherited.c -- */

/* Closes all from 3 on but `kept` (-1: none is), now or when another program is executed. */
void nm_close_others(int kept, bool at_exec);

/* -- title.c -- */

/* Our own words lie behind one another: there is as much room for a title as they take. */
void nm_keep_title(int argc, char *argv[]);
/* What ps shows of this process. */
void nm_set_title(const char *attempt);

#endif
