/* become.c: a forked child becomes the job: its user, groups, directory and program, without
 * anything of the supervisor.
 *
 * Resource limits are those of the launcher. Everything that can hang (the user database, a
 * directory on a dead server) happens in this process, which the supervisor can end.
 */
#include "jobs/jobs.h"
#include "jobs/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"
#define MOST_PATH_BYTES 4096

/* All signals, with those that libc reserves: for the system call, zero is the default. */
static void plain_signals(void)
{
    static const unsigned long plain[8];
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, plain, NULL, (size_t)NSIG / 8);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The kernel spares the manager when memory runs out, but not its jobs. */
static void plain_oom_score(void)
{
    char text[16] = "";
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) > 0 && text[0] == '-' && pwrite(fd, "0", 1, 0) != 1)
        text[0] = 0; /* the job runs, whether it was raised or not */
    close(fd);
}

static bool standard_streams(int output)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return null >= 0 && dup2(null, 0) == 0 && dup2(output, 1) == 1 && dup2(output, 2) == 2;
}

/* A number of the kernel that all processes of the job inherit, and that none can change without
   CAP_AUDIT_CONTROL. The manager finds the job's processes by it. */
static void begin_audit_session(uid_t uid)
{
    char text[16];
    const int size = snprintf(text, sizeof text, "%lu", (unsigned long)uid);
    const int fd = open("/proc/self/loginuid", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* a kernel without audit */
    if (write(fd, text, (size_t)size) < 0)
        errno = 0; /* no right to begin one: the job stays in the starter's */
    close(fd);
}

/* A user without a name is called by its number. */
static bool is_number_of(const char *name, uid_t uid)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%lu", (unsigned long)uid);
    return strcmp(name, digits) == 0;
}

/* As root of the node: the user's groups, then the user. The group is that of the submitting
   process. */
static struct nm_failure take_identity(const struct nm_order *order)
{
    const struct passwd *user;
    if (order->keeps_identity)
        return (struct nm_failure){NM_AT_IDENTITY, 0};
    if (geteuid() != 0) /* only root can become another user */
        return (struct nm_failure){NM_AT_IDENTITY, order->uid == geteuid() ? 0 : EPERM};
    errno = 0;
    user = getpwnam(order->user);
    if (user == NULL && (!is_number_of(order->user, order->uid) ||
                         (errno != 0 && errno != ENOENT && errno != ESRCH)))
        return (struct nm_failure){NM_AT_USER, errno == 0 || errno == ESRCH ? ENOENT : errno};
    if (user != NULL && user->pw_uid != order->uid)
        return (struct nm_failure){NM_AT_USER, ENOENT};
    if ((user != NULL ? initgroups(order->user, order->gid) : setgroups(1, &order->gid)) != 0)
        return (struct nm_failure){NM_AT_GROUPS, errno};
    if (setresgid(order->gid, order->gid, order->gid) != 0 ||
        setresuid(order->uid, order->uid, order->uid) != 0)
        return (struct nm_failure){NM_AT_IDENTITY, errno};
    return (struct nm_failure){NM_AT_IDENTITY, 0};
}

static const char *path_of(char *const environ[])
{
    for (; *environ != NULL; environ++)
        if (strncmp(*environ, "PATH=", 5) == 0)
            return *environ + 5;
    return DEFAULT_PATH;
}

/* execve; a script without #! is given to the shell, as a shell does. */
static void execute(const struct nm_order *order, const char *file)
{
    size_t count = 0;
    const char **words;
    execve(file, order->argv, order->environ);
    if (errno != ENOEXEC)
        return;
    while (order->argv[count] != NULL)
        count++;
    words = calloc(count + 2, sizeof *words);
    if (words == NULL)
        return;
    words[0] = "/bin/sh";
    words[1] = file;
    memcpy(words + 2, order->argv + 1, count * sizeof *words); /* with the NULL after them */
    execve(words[0], (char *const *)words, order->environ);
}

/* The first executable file in the job's own PATH. */
static struct nm_failure search(const struct nm_order *order)
{
    const char *name = order->argv[0];
    bool is_there = false, is_refused = false;
    if (strchr(name, '/') != NULL) {
        execute(order, name);
        return (struct nm_failure){
            errno == ENOENT && access(name, F_OK) == 0 ? NM_AT_INTERPRETER : NM_AT_PROGRAM, errno};
    }
    for (const char *path = path_of(order->environ), *end; path != NULL && name[0] != 0;
         path = *end != 0 ? end + 1 : NULL) {
        char file[MOST_PATH_BYTES];
        end = strchrnul(path, ':');
        if (snprintf(file, sizeof file, "%.*s%s%s", (int)(end - path), path, end > path ? "/" : "",
                     name) >= (int)sizeof file)
            continue;
        execute(order, file);
        if (errno == EACCES)
            is_refused = is_refused || access(file, F_OK) == 0;
        else if (errno == ENOENT)
            is_there = is_there || access(file, F_OK) == 0;
        else if (errno != ENOTDIR && errno != ESTALE && errno != ENODEV && errno != ETIMEDOUT)
            return (struct nm_failure){NM_AT_PROGRAM, errno};
    }
    if (is_there)
        return (struct nm_failure){NM_AT_INTERPRETER, ENOENT};
    return (struct nm_failure){NM_AT_PROGRAM, is_refused ? EACCES : ENOENT};
}

struct nm_failure nm_become(const struct nm_order *order, int output, pid_t parent)
{
    struct nm_failure failure;
    setsid();
    plain_oom_score();
    if (!order->keeps_identity)
        begin_audit_session(order->uid);
    umask(order->umask);
    if (!standard_streams(output))
        return (struct nm_failure){NM_AT_IDENTITY, errno};
    failure = take_identity(order);
    if (failure.error != 0)
        return failure;
    /* the keyring of the manager's starter stays there */
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
    /* after the change of the user, which resets it */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    if (chdir(order->cwd) != 0)
        return (struct nm_failure){NM_AT_CWD, errno};
    nm_close_others(-1, true); /* the program gets only 0, 1 and 2 */
    plain_signals();
    return search(order);
}

/* An error that may be gone at the next attempt. */
static bool may_pass(int error)
{
    static const int passing[] = {EIO,      ENOMEM,    EAGAIN,       ETXTBSY,     EMFILE,
                                  ENFILE,   ESTALE,    EINTR,        ENOSPC,      ETIMEDOUT,
                                  ENOTCONN, EHOSTDOWN, EHOSTUNREACH, ECONNREFUSED};
    for (size_t index = 0; index < sizeof passing / sizeof *passing; index++)
        if (passing[index] == error)
            return true;
    return false;
}

enum nm_cause nm_failure_words(const struct nm_order *order, struct nm_failure failure,
                               char why[NM_JOB_WHY_BYTES])
{
    const char *reason = strerror(failure.error);
    switch (failure.stage) {
    case NM_AT_USER:
        if (failure.error == ENOENT)
            snprintf(why, NM_JOB_WHY_BYTES, NM_USER_GONE, order->user, (long long)order->uid);
        else
            snprintf(why, NM_JOB_WHY_BYTES, NM_USER_UNKNOWN, order->user, reason);
        break;
    case NM_AT_GROUPS:
        snprintf(why, NM_JOB_WHY_BYTES, NM_GROUPS_NOT_SET, order->user, reason);
        return NM_NOT_STARTED;
    case NM_AT_IDENTITY:
        snprintf(why, NM_JOB_WHY_BYTES, NM_USER_NOT_TAKEN, order->user, (long long)order->uid,
                 reason);
        break;
    case NM_AT_CWD:
        snprintf(why, NM_JOB_WHY_BYTES, NM_DIRECTORY_NOT_ENTERED, order->cwd, reason);
        break;
    case NM_AT_PROGRAM:
        if (failure.error == ENOENT || failure.error == EACCES)
            reason = failure.error == ENOENT ? NM_NOT_FOUND : NM_NOT_EXECUTABLE;
        snprintf(why, NM_JOB_WHY_BYTES, NM_PROGRAM_NOT_RUN, order->argv[0], reason);
        break;
    case NM_AT_INTERPRETER:
        snprintf(why, NM_JOB_WHY_BYTES, NM_INTERPRETER_NOT_FOUND, order->argv[0]);
        break;
    }
    return may_pass(failure.error) ? NM_NOT_STARTED : NM_CANNOT_RUN;
}
