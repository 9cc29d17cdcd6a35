/* launcher.c: forks supervisors for the manager, which has given up the right to.
 *
 * Knows: its jobs' directory, its own supervisors. Must not know: orders, how a job is run.
 *
 * A process that connects can run programs as any user. So the launcher accepts its own user alone,
 * and takes no more than the name of a directory below the jobs' directory, which its own user must
 * own. It is a subreaper: processes that a killed supervisor leaves become its children and are
 * ended.
 */
#include "base/prim.h"
#include "jobs/messages.h"
#include "supervisor/supervisor.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_MANAGERS = 8, MOST_GRAVES = 4096, PACKET_BYTES = 512, STRAY_PAUSE_MS = 20, FIXED = 3 };

struct grave {
    int manager;
    char name[NM_JOB_NAME_BYTES];
};

struct launcher {
    const char *jobs;
    const char *scope; /* NULL: no cgroups */
    int listener; /* -1: one manager only */
    int signals;
    int events; /* of the cgroups of commands */
    int managers[MOST_MANAGERS];
    size_t manager_count;
    struct nm_children supervisors;
    struct grave *graves; /* processes whose end the manager waits for */
    size_t grave_count;
};

/* Loads the modules of the user database once, which takes each job's process a millisecond
   otherwise. Nothing is looked up: that could wait for an absent server. */
static void load_user_database(void)
{
    char line[512], module[96], *rest, *word;
    FILE *file = fopen("/etc/nsswitch.conf", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "passwd:", 7) != 0 && strncmp(line, "group:", 6) != 0 &&
            strncmp(line, "initgroups:", 11) != 0)
            continue;
        for (word = strtok_r(strchr(line, ':') + 1, " \t\n", &rest); word != NULL && word[0] != '#';
             word = strtok_r(NULL, " \t\n", &rest))
            if (strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(word) &&
                snprintf(module, sizeof module, "libnss_%s.so.2", word) < (int)sizeof module)
                dlopen(module, RTLD_NOW); /* those in libc have no file */
    }
    if (file != NULL)
        fclose(file);
}

static void answer(int manager, const char *word, const char *name, const char *more)
{
    char text[PACKET_BYTES];
    int length =
        snprintf(text, sizeof text, "%s %s%s%s", word, name, more[0] != 0 ? " " : "", more);
    while (send(manager, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1,
                MSG_NOSIGNAL) < 0 &&
           errno == EINTR)
        ;
}

/* -- starting -- */

/* "JOB/ATTEMPT", of letters, digits and dots, without a dot in front. */
static bool is_name(const char *name)
{
    size_t slashes = 0;
    if (strlen(name) >= NM_JOB_NAME_BYTES)
        return false;
    for (size_t index = 0; name[index] != 0; index++) {
        const char letter = name[index];
        const bool is_first = index == 0 || name[index - 1] == '/';
        slashes += letter == '/';
        if (!(isalnum((unsigned char)letter) || (!is_first && (letter == '.' || letter == '/'))))
            return false;
    }
    return slashes == 1 && name[strlen(name) - 1] != '/';
}

/* The directory itself, even if a path is renamed or linked meanwhile; -1: `why`. */
static int open_attempt(const char *jobs, const char *name, char why[NM_JOB_WHY_BYTES])
{
    char job[NM_JOB_NAME_BYTES];
    const char *slash = strchr(name, '/');
    int steps[3] = {-1, -1, -1};
    struct stat status;
    snprintf(job, sizeof job, "%.*s", (int)(slash - name), name);
    for (int step = 0; step < 3; step++) {
        const char *path = step == 0 ? jobs : step == 1 ? job : slash + 1;
        steps[step] = openat(step == 0 ? AT_FDCWD : steps[step - 1], path,
                             O_RDONLY | O_DIRECTORY | O_CLOEXEC | (step == 0 ? 0 : O_NOFOLLOW));
        if (step > 0)
            close(steps[step - 1]);
        if (steps[step] < 0 || !nm_file_status(steps[step], &status)) {
            snprintf(why, NM_JOB_WHY_BYTES, NM_ATTEMPT_NOT_OPENED, jobs, name, strerror(errno));
            return -1;
        }
        if (status.st_uid != geteuid() || (status.st_mode & 022) != 0) {
            snprintf(why, NM_JOB_WHY_BYTES, NM_WRITABLE_BY_OTHERS, jobs, name,
                     (long long)geteuid());
            close(steps[step]);
            return -1;
        }
    }
    return steps[2];
}

/* In the child: keeps nothing of the launcher except the manager's socket. */
static int become_supervisor(struct launcher *launcher, int directory, const char *name,
                             int manager)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    close(launcher->signals);
    if (launcher->events >= 0)
        close(launcher->events);
    if (launcher->listener >= 0)
        close(launcher->listener);
    for (size_t index = 0; index < launcher->manager_count; index++)
        if (launcher->managers[index] != manager)
            close(launcher->managers[index]);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
    nm_set_title(name);
    if (fchdir(directory) != 0)
        return 1;
    return nm_supervise_directory(directory, name, manager, launcher->scope);
}

static void start(struct launcher *launcher, int manager, const char *name)
{
    char why[NM_JOB_WHY_BYTES] = "", more[64];
    pid_t pid = -1;
    int directory = open_attempt(launcher->jobs, name, why);
    if (directory >= 0 && nm_children_make_room(&launcher->supervisors))
        pid = fork();
    if (pid == 0)
        exit(become_supervisor(launcher, directory, name, manager));
    if (directory >= 0 && pid < 0)
        snprintf(why, sizeof why, NM_NO_SUPERVISOR, strerror(errno));
    if (directory >= 0)
        close(directory);
    if (pid < 0) {
        answer(manager, "failed", name, why);
        return;
    }
    nm_children_add(&launcher->supervisors, pid, name);
    snprintf(more, sizeof more, "%ld %llu", (long)pid, nm_start_ticks(pid));
    answer(manager, "forked", name, more);
}

/* -- burying -- */

static void answer_graves(struct launcher *launcher)
{
    size_t kept = 0;
    for (size_t index = 0; index < launcher->grave_count; index++) {
        struct grave *grave = &launcher->graves[index];
        if (launcher->supervisors.strays || nm_children_has(&launcher->supervisors, grave->name))
            launcher->graves[kept++] = *grave;
        else
            answer(grave->manager, "buried", grave->name, "");
    }
    launcher->grave_count = kept;
}

static void reap(struct launcher *launcher)
{
    nm_children_reap(&launcher->supervisors);
    answer_graves(launcher);
}

static void bury(struct launcher *launcher, int manager, const char *name)
{
    if (launcher->grave_count == MOST_GRAVES)
        return;
    struct grave *grave = &launcher->graves[launcher->grave_count++];
    grave->manager = manager;
    snprintf(grave->name, sizeof grave->name, "%.*s", NM_JOB_NAME_BYTES - 1, name);
    launcher->supervisors.strays = true;
    reap(launcher);
}

/* -- leaves -- */

/* Empty leaves are of jobs that ended while their supervisor was killed. */
static void check_scope(struct launcher *launcher)
{
    if (launcher->scope == NULL)
        return;
    if (access(launcher->scope, W_OK) == 0) {
        nm_leaf_sweep(launcher->scope);
        nm_run_sweep(launcher->scope, launcher->events);
        launcher->scope = strdup(launcher->scope); /* a title takes the room of the arguments */
        return;
    }
    fprintf(stderr, "nodemgr: " NM_NO_SCOPE "\n", launcher->scope, strerror(errno));
    launcher->scope = NULL;
}

/* An administrator may have stopped the scope. The service begins anew then and makes it again; the
   manager repeats what it has asked for. */
static void end_without_scope(const struct launcher *launcher)
{
    if (launcher->scope == NULL || access(launcher->scope, F_OK) == 0)
        return;
    fprintf(stderr, "nodemgr: " NM_SCOPE_GONE "\n", launcher->scope);
    exit(1);
}

/* "ENV/JOB.ATTEMPT" of an attempt with a directory here, which `make` makes; "ENV" or
   "ENV/run-NUMBER", which are made. After it may be "FILE VALUE". Returns the name's directory, or
   -1. */
static int leaf_of(const struct launcher *launcher, const char *text, char name[NM_LEAF_BYTES],
                   bool make)
{
    char attempt[NM_JOB_NAME_BYTES], why[NM_JOB_WHY_BYTES];
    const char *slash, *point;
    int directory;
    snprintf(name, NM_LEAF_BYTES, "%.*s", (int)strcspn(text, " "), text);
    errno = EINVAL;
    if (launcher->scope == NULL)
        return -1;
    if (nm_leaf_is_name(name, true) || (nm_leaf_is_name(name, false) && nm_run_is_leaf(name)))
        return nm_leaf_open(launcher->scope, name, true);
    if (!nm_leaf_is_name(name, false) || (slash = strchr(name, '/')) == NULL ||
        (point = strrchr(slash, '.')) == NULL)
        return -1;
    snprintf(attempt, sizeof attempt, "%.*s/%s", (int)(point - slash - 1), slash + 1, point + 1);
    if (!is_name(attempt) || (directory = open_attempt(launcher->jobs, attempt, why)) < 0)
        return -1;
    close(directory);
    return nm_leaf_open(launcher->scope, name, make);
}

static void limit(const struct launcher *launcher, int manager, const char *text)
{
    char name[NM_LEAF_BYTES];
    const char *space = strchr(text, ' ');
    const int leaf = leaf_of(launcher, text, name, false);
    if (leaf < 0 || space == NULL || !nm_leaf_limit(leaf, space + 1))
        answer(manager, "unlimited", name, strerror(errno));
    else
        answer(manager, "limited", name, "");
    if (leaf >= 0)
        close(leaf);
}

/* "ENV/run-NUMBER": its process is that of the pidfd that came with the packet. */
static void enter(const struct launcher *launcher, int manager, const char *text, int pidfd)
{
    char name[NM_LEAF_BYTES];
    const int leaf = leaf_of(launcher, text, name, false);
    const bool is_run = leaf >= 0 && nm_run_is_leaf(name);
    const char *why =
        is_run ? nm_run_enter(leaf, pidfd, launcher->events) : NM_REQUEST_UNKNOWN;
    answer(manager, why == NULL ? "entered" : "outside", name, why == NULL ? "" : why);
    if (is_run && why != NULL)
        nm_leaf_remove(launcher->scope, name);
    if (leaf >= 0)
        close(leaf);
}

/* A job's cgroup before its start: the manager opens devices to it, then asks for the start. */
static void make_leaf(const struct launcher *launcher, int manager, const char *text)
{
    char name[NM_LEAF_BYTES];
    const int leaf = leaf_of(launcher, text, name, true);
    answer(manager, "leaf", name, "");
    if (leaf >= 0)
        close(leaf);
}

static void kill_leaf(const struct launcher *launcher, const char *text, bool is_end)
{
    char name[NM_LEAF_BYTES];
    const int leaf = nm_run_is_leaf(text) ? -1 : leaf_of(launcher, text, name, false);
    nm_leaf_kill(leaf);
    if (is_end && leaf >= 0)
        nm_leaf_remove(launcher->scope, name);
    if (leaf >= 0)
        close(leaf);
}

/* -- managers -- */

static void hear(struct launcher *launcher, int manager, const char *text, int descriptor)
{
    end_without_scope(launcher);
    if (strcmp(text, "where") == 0) {
        answer(manager, "scope", launcher->scope != NULL ? launcher->scope : "-", "");
        answer(manager, "jobs", launcher->jobs, "");
    } else if (strncmp(text, "limit ", 6) == 0)
        limit(launcher, manager, text + 6);
    else if (strncmp(text, "leaf ", 5) == 0)
        make_leaf(launcher, manager, text + 5);
    else if (strncmp(text, "enter ", 6) == 0)
        enter(launcher, manager, text + 6, descriptor);
    else if (strncmp(text, "kill ", 5) == 0)
        kill_leaf(launcher, text + 5, false);
    else if (strncmp(text, "remove ", 7) == 0)
        kill_leaf(launcher, text + 7, true);
    else if (strncmp(text, "start ", 6) == 0 && is_name(text + 6))
        start(launcher, manager, text + 6);
    else if (strncmp(text, "bury ", 5) == 0 && is_name(text + 5))
        bury(launcher, manager, text + 5);
    else
        answer(manager, "failed", "-", NM_REQUEST_UNKNOWN);
}

static void lose(struct launcher *launcher, size_t index)
{
    const int manager = launcher->managers[index];
    size_t kept = 0;
    for (size_t grave = 0; grave < launcher->grave_count; grave++)
        if (launcher->graves[grave].manager != manager)
            launcher->graves[kept++] = launcher->graves[grave];
    launcher->grave_count = kept;
    close(manager);
    launcher->managers[index] = launcher->managers[--launcher->manager_count];
}

/* One packet, one text. From the manager: start JOB/ATTEMPT, bury JOB/ATTEMPT, where, leaf LEAF
 * (it is made, and the same word answers), kill LEAF, remove LEAF (its processes are ended),
 * limit LEAF|ENV FILE VALUE, enter LEAF with a pidfd. To it: forked JOB/ATTEMPT PID TICKS,
 * failed JOB/ATTEMPT WHY, buried JOB/ATTEMPT (when none of its processes is left),
 * scope DIRECTORY|- and jobs DIRECTORY, limited LEAF, unlimited LEAF WHY, entered LEAF,
 * outside LEAF WHY. false: there will be no other packet. */
static bool read_manager(struct launcher *launcher, int manager)
{
    char text[PACKET_BYTES];
    union { /* room for one descriptor: the kernel closes others */
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } more;
    struct iovec part = {.iov_base = text, .iov_len = sizeof text - 1};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &more,
                            .msg_controllen = sizeof more};
    const ssize_t size = recvmsg(manager, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header;
    int descriptor = -1;
    if (size < 0)
        return errno == EAGAIN || errno == EINTR;
    header = CMSG_FIRSTHDR(&packet);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    text[size] = 0;
    if (size > 0)
        hear(launcher, manager, text, descriptor);
    if (descriptor >= 0)
        close(descriptor);
    return size > 0;
}

static void admit(struct launcher *launcher)
{
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    const int manager = accept4(launcher->listener, NULL, NULL, SOCK_CLOEXEC);
    if (manager < 0)
        return;
    if (getsockopt(manager, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid() ||
        launcher->manager_count == MOST_MANAGERS)
        close(manager);
    else
        launcher->managers[launcher->manager_count++] = manager;
}

static void serve(struct launcher *launcher)
{
    while (launcher->listener >= 0 || launcher->manager_count > 0 ||
           launcher->supervisors.count > 0 || launcher->supervisors.strays) {
        struct pollfd ready[FIXED + MOST_MANAGERS] = {{.fd = launcher->signals, .events = POLLIN},
                                                      {.fd = launcher->listener, .events = POLLIN},
                                                      {.fd = launcher->events, .events = POLLIN}};
        const size_t count = launcher->manager_count;
        for (size_t index = 0; index < count; index++)
            ready[FIXED + index] =
                (struct pollfd){.fd = launcher->managers[index], .events = POLLIN};
        if (poll(ready, FIXED + count, launcher->supervisors.strays ? STRAY_PAUSE_MS : -1) < 0)
            continue;
        if (ready[0].revents != 0) {
            struct signalfd_siginfo info;
            while (read(launcher->signals, &info, sizeof info) == (ssize_t)sizeof info)
                ;
        }
        if (ready[0].revents != 0 || launcher->supervisors.strays)
            reap(launcher);
        /* from the last: a removed one is replaced by the last */
        for (size_t index = count; index-- > 0;)
            if (ready[FIXED + index].revents != 0 &&
                !read_manager(launcher, launcher->managers[index]))
                lose(launcher, index);
        if (ready[2].revents != 0 && launcher->scope != NULL)
            nm_run_sweep(launcher->scope, launcher->events);
        if (ready[1].revents != 0)
            admit(launcher);
    }
}

int nm_launch(int socket, bool listens, const char *jobs, const char *scope)
{
    struct launcher launcher = {.jobs = jobs, .scope = scope, .listener = listens ? socket : -1};
    sigset_t heard;
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    launcher.graves = calloc(MOST_GRAVES, sizeof *launcher.graves);
    if (!listens)
        launcher.managers[launcher.manager_count++] = socket;
    if (launcher.graves == NULL || sigprocmask(SIG_SETMASK, &heard, NULL) != 0 ||
        (launcher.signals = signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        fprintf(stderr, "nodemgr: " NM_LAUNCHER_NOT_STARTED "\n", strerror(errno));
        return 1;
    }
    launcher.events = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    check_scope(&launcher);
    load_user_database();
    serve(&launcher);
    return 0;
}
