/* jobs.h: one attempt of a batch job: starts its process, keeps its output, records its end. Part
 * of nodemgr-supervisor (csrc/supervisor) and of nodemgr-runner (csrc/runner).
 *
 * Knows: the files of an attempt, the search for a job's processes. Must not know: GPUs, quotas,
 * queues, the store.
 *
 * In a container a runner replaces the launcher. Its supervisors write to memory and a pipe of the
 * process that speaks with the manager (csrc/runner/attempt.c).
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
    NM_LEAF_BYTES = 192, /* ENV/JOB.ATTEMPT with its NUL */
    NM_LEAF_LIMITS = 8,
    NM_EXIT_NOT_OURS = 3, /* of a supervisor: another process has claimed the attempt */
    NM_EXIT_UNRECORDED = 4,
    NM_JOB_ASKS = SIGUSR1, /* the manager to a supervisor: end the job */
    NM_JOB_LIMIT = SIGUSR2, /* read `limit` again */
    NM_JOB_WARNS = SIGPWR   /* as NM_JOB_ASKS, with the order's own signal before */
};

/* Of a clock that cannot be set. */
static inline long long nm_monotonic_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* glibc re-versioned fstat in 2.33, and this is also loaded with older ones; the system call
   fills the same struct on 64-bit Linux. */
static inline bool nm_file_status(int fd, struct stat *status)
{
    return syscall(SYS_fstat, fd, status) == 0;
}

/* Keeps the end of an attempt, as a few words of digits, points and dashes, if the record
   cannot. */
typedef bool nm_witness(const char *outcome);

/* The open files of one attempt, which lie in JOBS/JOB/ATTEMPT; in a container memory, and a pipe
 * for `log`. A number below 0 is an errno.
 *   order   the order (order.c); only this file is trusted
 *   record  lines at fixed places, written over blanks: the start of the process, its end, its use
 *   log     the job's output (log.c)
 *   limit   the time limit in milliseconds, or blanks; written in place
 */
struct nm_files {
    int order, record, log, limit;
    nm_witness *witness; /* NULL: none */
    const char *scope;   /* the directory of the leaves (leaf.c); NULL: the job gets none */
    /* in a container: the job runs as its supervisor's user, and the kernel has passed the order */
    bool is_inside;
};

/* -- order.c -- */

struct nm_order {
    const char *job, *user, *cwd; /* job: JOB:ATTEMPT */
    uid_t uid;
    gid_t gid;
    long long grace_ms, log_bytes; /* log_bytes 0: no limit */
    long long signal, signal_ms;   /* so long before it is ended; signal 0: none */
    mode_t umask;
    char **argv, **environ;
    const char *leaf;                   /* the name of its cgroup; NULL: it gets none */
    char *limits[NM_LEAF_LIMITS + 1];   /* of the leaf: "FILE VALUE" */
    char *env_limits[NM_LEAF_LIMITS + 1]; /* of its environment's cgroup */
    bool keeps_identity; /* the job runs as its supervisor's user */
};

/* Reads the order. Outside of containers only this user may have written it. false: `why` has
   the reason. Its texts live as long as the process. */
bool nm_order_read(const struct nm_files *files, struct nm_order *order,
                   char why[NM_JOB_WHY_BYTES]);
/* Decimal digits and nothing else, up to `most`. */
bool nm_job_number(const char *text, long long most, long long *value);

/* -- become.c -- */

/* The step at which a process failed before the job's program ran. */
enum nm_stage {
    NM_AT_USER,
    NM_AT_GROUPS,
    NM_AT_IDENTITY,
    NM_AT_CWD,
    NM_AT_PROGRAM,
    NM_AT_INTERPRETER
};

/* The cause of an attempt's end, by its number in the record
   (nodemgr/edge/executor/attempt_directory.py, CAUSES). */
enum nm_cause { NM_OWN, NM_CANNOT_RUN, NM_OVER_TIME, NM_NOT_STARTED, NM_NODE_DOWN, NM_HOST_MEMORY };

struct nm_failure {
    enum nm_stage stage;
    int error;
};

/* In a forked child: becomes the job. Returns only on failure. */
struct nm_failure nm_become(const struct nm_order *order, int output, pid_t parent);
/* The failure in words, and its cause. */
enum nm_cause nm_failure_words(const struct nm_order *order, struct nm_failure failure,
                               char why[NM_JOB_WHY_BYTES]);

/* -- below.c -- */

/* Processes that a signal to all below this process leaves out. */
struct nm_spared {
    pid_t alone;        /* this process, but not what it started; 0: none */
    const pid_t *trees; /* these, with everything below them */
    size_t tree_count;
};

struct nm_swept {
    int found, refused; /* refused: no right to signal them */
};

/* Sends a signal to all processes below this one. found is -1 if that cannot be known now. */
struct nm_swept nm_signal_below(int number, struct nm_spared spared);
/* The start of a process in clock ticks after boot; 0: there is none. */
unsigned long long nm_start_ticks(pid_t pid);
/* The number of its audit session in the kernel; 0: none. */
unsigned long nm_audit_session(pid_t pid);

/* -- leaf.c -- */

/* ENV/JOB.ATTEMPT, or (`is_env`) ENV: letters, digits, points, dashes, none of these in front. */
bool nm_leaf_is_name(const char *name, bool is_env);
/* The leaf of a job, made with its limits; -1: it gets none. */
int nm_leaf_make(const char *scope, const struct nm_order *order);
/* How often the jobs of its environment have met the limit of all of them. */
long long nm_leaf_env_ooms(const char *scope, const char *name);
/* Whether a job has little left of its memory limit; `line`: for its log. */
bool nm_leaf_nearly_full(int leaf, const struct nm_order *order, char line[NM_JOB_WHY_BYTES]);
/* Why the kernel ended a process in it for lack of memory; false: it did not. `is_of_env`: the
   environment's limit was met meanwhile. */
bool nm_leaf_out_of_memory(int leaf, const struct nm_order *order, bool is_of_env,
                           char why[NM_JOB_WHY_BYTES]);
/* "used CPU_US MOST_BYTES READ_BYTES WRITTEN_BYTES"; 0: not known. */
void nm_leaf_figures(int leaf, char *text, size_t size);
/* Its directory, made if it is not there; -1: errno. */
int nm_leaf_open(const char *scope, const char *name, bool make);
/* Lets what is below a cgroup have limits of its own. */
void nm_leaf_enable(int directory);
bool nm_leaf_write(int leaf, const char *file, const char *value);
/* "FILE VALUE". false, EBUSY: more memory is in use, and the limit is a little above that now. */
bool nm_leaf_limit(int leaf, const char *limit);
/* As fork, with the child in the leaf (-1: none). -1 with ENODEV: the leaf is removed. */
pid_t nm_leaf_fork(int leaf);
/* Ends all processes in it at once, which takes a kernel from 5.14 on. */
void nm_leaf_kill(int leaf);
/* Removes it. false: a process is in it. */
bool nm_leaf_remove(const char *scope, const char *name);
/* Kills, removes and closes it; one whose processes do not end within 2 s stays. */
void nm_leaf_end(const char *scope, const char *name, int leaf);
/* Removes the cgroups without a process, which a crash left. */
void nm_leaf_sweep(const char *scope);

/* -- log.c -- */

/* The process that writes a job's output. */
struct nm_log {
    pid_t keeper;
    int control; /* the keeper ends when this does; -1: there is no keeper */
};

/* Begins to keep output in `file`, with at most most_bytes of it on the disk (0: no limit).
 * Returns the descriptor to which the job writes, or -1 with errno. The caller still owns
 * `file`. */
int nm_log_begin(struct nm_log *log, int file, long long most_bytes);
/* Waits until the output so far is in the file, and ends the keeper. */
void nm_log_end(struct nm_log *log);

/* -- supervise.c -- */

/* The packet for the manager when the job runs. */
struct nm_word {
    char bytes[512];
    size_t size;
};
/* `began`: "WALL_NS PID TICKS". */
typedef struct nm_word nm_running_word(const char *began);

/* A descriptor of the signals to a supervisor; -1: it cannot. All are blocked from now on. */
int nm_take_signals(void);
/* Supervises the attempt until none of its processes runs. `manager` is a socket for one packet
   when the job runs, or -1. Owns all descriptors. Returns the exit status of the process. */
int nm_supervise(const struct nm_files *files, int signals, int manager,
                 nm_running_word *running_word);

/* -- children.c -- */

struct nm_child {
    pid_t pid;
    char name[NM_JOB_NAME_BYTES];
};

/* The supervisors of one process, which is a subreaper: processes that a killed supervisor
   leaves become its children. */
struct nm_children {
    struct nm_child *rows;
    size_t count, room;
    bool strays; /* there may be children that are no supervisors */
};

bool nm_children_make_room(struct nm_children *children); /* for another one; false: no memory */
void nm_children_add(struct nm_children *children, pid_t pid, const char *name);
bool nm_children_has(const struct nm_children *children, const char *name);
/* Waits for those that have ended, and ends what a killed one has left. */
void nm_children_reap(struct nm_children *children);

/* -- inherited.c -- */

/* Closes all from 3 on except `kept` (-1: none), now or at the next exec. */
void nm_close_others(int kept, bool at_exec);

/* -- title.c -- */

/* The title may use the room of the command line. */
void nm_keep_title(int argc, char *argv[]);
/* The process's name in ps. */
void nm_set_title(const char *attempt);

#endif
