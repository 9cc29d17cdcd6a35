/* prim.c: see prim.h. */
#include "base/prim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef GRND_NONBLOCK
#define GRND_NONBLOCK 1u
#endif

/* Within a process's first table of 64: a larger one costs a program with threads some 10 ms. */
#define FIRST_HIGH_FD 40
#define STACK_BYTES (256u << 10) /* static TLS of the host program is taken out of it */
#define STACK_MOST_BYTES (16u << 20)

/* -- time and chance -- */

uint64_t nm_now_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t nm_random(void)
{
    static _Atomic uint64_t fallback;
    uint64_t value;
    if (syscall(SYS_getrandom, &value, sizeof value, GRND_NONBLOCK) == (long)sizeof value)
        return value;
    /* Before the kernel's pool is ready, or without the call: good enough for request ids and
       pauses. */
    return mix(nm_now_ns() ^ (uint64_t)nm_pid() << 32 ^
               atomic_fetch_add(&fallback, UINT64_C(0x9e3779b97f4a7c15)));
}

static struct timespec timespec_of(uint64_t duration_ns)
{
    return (struct timespec){.tv_sec = (time_t)(duration_ns / 1000000000u),
                             .tv_nsec = (long)(duration_ns % 1000000000u)};
}

void nm_pause_ns(uint64_t duration_ns)
{
    struct timespec duration = timespec_of(duration_ns);
    /* glibc's is a cancellation point, and callers hold locks */
    syscall(SYS_nanosleep, &duration, NULL);
}

void nm_nap_ns(uint64_t duration_ns)
{
    int slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    if (slack_ns > 1)
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    nm_pause_ns(duration_ns);
    if (slack_ns > 1)
        prctl(PR_SET_TIMERSLACK, slack_ns, 0, 0, 0);
}

/* -- waiting for a word -- */

bool nm_word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec timeout = timespec_of(timeout_ns);
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0) == 0 ||
           errno != EINTR;
}

void nm_word_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#define REFUSED_NAP_NS UINT64_C(1000000)

bool nm_shared_word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec timeout = timespec_of(timeout_ns);
    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0) == 0)
        return true;
    bool refused = errno != EAGAIN && errno != ETIMEDOUT && errno != EINTR;
    if (refused) /* a seccomp filter without this call: the waiting thread must not spin */
        nm_nap_ns(timeout_ns < REFUSED_NAP_NS ? timeout_ns : REFUSED_NAP_NS);
    return errno != EINTR;
}

void nm_shared_word_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

enum { UNLOCKED, LOCKED, CONTENDED };
#define ORPHANED_NS UINT64_C(100000000)

/* A raw clone runs no handler: the lock may be held by a thread of the parent, which is not
   here. After a while it is taken over. */
void nm_lock(struct nm_lock *lock)
{
    uint32_t expected = UNLOCKED;
    if (atomic_compare_exchange_strong(&lock->word, &expected, LOCKED))
        return;
    while (atomic_exchange(&lock->word, CONTENDED) != UNLOCKED) {
        if (!nm_forked())
            syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, CONTENDED, NULL, NULL, 0);
        else if (nm_lock_within(lock, ORPHANED_NS))
            return;
        else
            atomic_store(&lock->word, UNLOCKED);
    }
}

bool nm_lock_within(struct nm_lock *lock, uint64_t timeout_ns)
{
    uint64_t end_ns = nm_now_ns() + timeout_ns;
    for (;;) {
        uint32_t expected = UNLOCKED;
        if (atomic_compare_exchange_strong(&lock->word, &expected, LOCKED))
            return true;
        if (nm_now_ns() >= end_ns)
            return false;
        nm_pause_ns(1000000);
    }
}

void nm_unlock(struct nm_lock *lock)
{
    if (atomic_exchange(&lock->word, UNLOCKED) == CONTENDED)
        syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* -- processes -- */

uint32_t nm_pid(void)
{
    return (uint32_t)syscall(SYS_getpid);
}

bool nm_is_secure(void)
{
    return getauxval(AT_SECURE) != 0;
}

_Atomic(_Atomic uint32_t *) nm_birth_page;
static _Atomic uint32_t birth_pid;             /* if the kernel cannot */
static _Atomic uint32_t own_threads;           /* of this library, in this process */

void nm_fork_mark(void)
{
    _Atomic uint32_t *page = atomic_load(&nm_birth_page);
    if (page == NULL) {
        void *fresh = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh != MAP_FAILED &&
            madvise(fresh, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) == 0) {
            page = fresh;
            /* before other threads see it: an empty page means a child */
            atomic_store(page, 1);
            atomic_store(&nm_birth_page, page);
        }
    }
    atomic_store(&birth_pid, nm_pid());
    atomic_store(&own_threads, 0);
    if (page != NULL)
        atomic_store(page, 1);
}

bool nm_forked_by_pid(void)
{
    uint32_t pid = atomic_load(&birth_pid);
    return pid != 0 && pid != nm_pid();
}

/* The main thread's own record of its number. The kernel clears it when that thread ends
 * (CLONE_CHILD_CLEARTID), so no system call is needed to read it; a join sets it to -1. NULL:
 * unknown. */
static _Atomic(_Atomic uint32_t *) main_tid;
static _Atomic uint32_t main_number; /* its value while that thread lives */
static sigset_t starter_signals; /* the mask of the thread that started the client's */

struct main_thread {
    bool ended;
    uint64_t threads; /* of the process, with a main thread that has ended */
    uint64_t status;  /* the main thread's, in wait's form */
};

/* The number in that field of /proc/self/stat, of which `state` is the field STATE_FIELD. */
enum { STATE_FIELD = 3, THREADS_FIELD = 20, STATUS_FIELD = 52 };
static bool stat_number(const char *state, int field, uint64_t *out)
{
    const char *at = state;
    for (int skipped = STATE_FIELD; at != NULL && skipped < field; skipped++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL && nm_number(at, strcspn(at, " \n"), out);
}

static bool read_main_thread(struct main_thread *out)
{
    char text[1024];
    if (nm_file_read("/proc/self/stat", text, sizeof text) < 0)
        return false;
    const char *name_end = strrchr(text, ')'); /* a program's name may have any bytes */
    if (name_end == NULL || name_end[1] != ' ')
        return false;
    const char *state = name_end + 2;
    out->ended = *state == 'Z';
    return stat_number(state, THREADS_FIELD, &out->threads) &&
           stat_number(state, STATUS_FIELD, &out->status);
}

/* The record lies in glibc's structure of the thread: number, spare number, pointer, robust list
 * head, in all versions. The kernel gives the address of the head. The value is compared, so
 * another layout is unknown and not an error. */
static _Atomic uint32_t *find_main_tid(void)
{
    enum { BEFORE_HEAD = 16, PAGE = 4096 };
    static _Atomic uint32_t ended;
    char *head = NULL;
    size_t size;
    struct main_thread now;
    main_number = nm_pid();
    if (syscall(SYS_get_robust_list, main_number, &head, &size) == 0 &&
        (uintptr_t)head % PAGE >= BEFORE_HEAD) {
        _Atomic uint32_t *record = (_Atomic uint32_t *)(void *)(head - BEFORE_HEAD);
        return atomic_load(record) == main_number ? record : NULL;
    }
    /* it ended before the client's thread began */
    return read_main_thread(&now) && now.ended ? &ended : NULL;
}

void nm_thread_look(struct nm_thread *thread)
{
    _Atomic uint32_t *record = atomic_load(&main_tid);
    struct main_thread now;
    if (record == NULL || atomic_load(record) == main_number || !read_main_thread(&now) ||
        !now.ended)
        return;
    thread->last = now.threads == 1 + atomic_load(&own_threads);
    thread->outlived = thread->outlived || !thread->last;
    thread->main_status = now.status;
}

static void *outlive(void *thread)
{
    pthread_join((pthread_t)thread, NULL);
    pthread_sigmask(SIG_SETMASK, &starter_signals, NULL);
    return NULL;
}

/* From Linux 6.0 on the status of a process is that of the thread that ends last, before that
   the main thread's. */
static void end_with(uint64_t status)
{
    int number = (int)(status & 0x7f);
    sigset_t one;
    if (number == 0)
        syscall(SYS_exit, (int)(status >> 8 & 0xff));
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    syscall(SYS_tgkill, nm_pid(), syscall(SYS_gettid), number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* After pthread_exit in main, glibc's last thread calls exit(0). The program's exit handlers
 * expect a stack of the usual size and the signals of the program, so a thread with both is the
 * last one. A main thread with another status than 0 ended past glibc. */
void nm_thread_end(const struct nm_thread *thread)
{
    pthread_t heir;
    atomic_fetch_sub(&own_threads, 1);
    if (thread->last && !thread->outlived && thread->main_status != 0)
        end_with(thread->main_status);
    if (!thread->last || pthread_create(&heir, NULL, outlive, (void *)pthread_self()) != 0)
        pthread_detach(pthread_self());
}

bool nm_thread_leave(void)
{
    uint32_t threads = atomic_load(&own_threads);
    while (threads > 1)
        if (atomic_compare_exchange_weak(&own_threads, &threads, threads - 1)) {
            pthread_detach(pthread_self());
            return true;
        }
    return false;
}

int nm_thread_start(void *(*body)(void *), size_t least_stack_bytes)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    atomic_store(&main_tid, find_main_tid());
    atomic_fetch_add(&own_threads, 1);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    starter_signals = before;
    size_t stack_bytes = least_stack_bytes > STACK_BYTES ? least_stack_bytes : STACK_BYTES;
    for (; stack_bytes <= STACK_MOST_BYTES; stack_bytes *= 8) {
        pthread_attr_setstacksize(&attributes, stack_bytes);
        error = pthread_create(&thread, &attributes, body, NULL);
        if (error != EINVAL) /* too small for the program's static TLS */
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        atomic_fetch_sub(&own_threads, 1);
    return error;
}

/* -- descriptors -- */

int nm_fd_high(int fd)
{
    if (fd < 0 || fd >= FIRST_HIGH_FD)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_HIGH_FD);
    if (high < 0 && fd > 2)
        return fd; /* the limit is lower: it stays where it is */
    if (high < 0)
        high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int error = errno;
    close(fd);
    errno = error;
    return high;
}

static bool file_status(int fd, struct stat *status)
{
    /* glibc re-versioned fstat in 2.33; the system call fills the same struct on 64-bit Linux. */
    return syscall(SYS_fstat, fd, status) == 0;
}

bool nm_fd_id(int fd, struct nm_file_id *id)
{
    struct stat status;
    if (!file_status(fd, &status))
        return false;
    *id = (struct nm_file_id){.device = (uint64_t)status.st_dev, .inode = (uint64_t)status.st_ino};
    return true;
}

bool nm_fd_is(int fd, const struct nm_file_id *id)
{
    struct nm_file_id now;
    return nm_fd_id(fd, &now) && now.device == id->device && now.inode == id->inode;
}

int64_t nm_fd_size(int fd)
{
    struct stat status;
    return file_status(fd, &status) ? (int64_t)status.st_size : -1;
}

int nm_memfd(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = (int)syscall(SYS_memfd_create, name, flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = (int)syscall(SYS_memfd_create, name, flags);
    return nm_fd_high(fd);
}

int64_t nm_file_read(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t got = 0;
    while (length < size - 1 &&
           ((got = read(fd, out + length, size - 1 - length)) > 0 || (got < 0 && errno == EINTR)))
        length += got > 0 ? (size_t)got : 0;
    int error = errno;
    out[length] = '\0';
    close(fd);
    errno = error;
    return got < 0 ? -1 : (int64_t)length;
}

/* -- environment -- */

const char *nm_env_get(const char *name)
{
    return getenv(name);
}

static bool names(const char *entry, const char *name, size_t length)
{
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

/* Published arrays stay, for threads that read them. Each has the one before it in front of its
   first entry, so that leak checkers find all. */
static char **_Atomic newest_published;

static void keep_published(char **fresh)
{
    char **before = atomic_load(&newest_published);
    do
        fresh[-1] = (char *)before;
    while (!atomic_compare_exchange_weak(&newest_published, &before, fresh));
}

/* A copy of `old` without `name`, with `entry` at its end (NULL: without it), and a place before
   its first entry. */
static char **environment_with(char **old, const char *name, char *entry)
{
    size_t count = 0, kept = 0, length = strlen(name);
    while (old != NULL && old[count] != NULL)
        count++;
    char **room = malloc((count + 3) * sizeof *room);
    if (room == NULL)
        return NULL;
    room[0] = NULL;
    char **fresh = room + 1;
    for (size_t i = 0; i < count; i++)
        if (!names(old[i], name, length))
            fresh[kept++] = old[i];
    if (entry != NULL)
        fresh[kept++] = entry;
    fresh[kept] = NULL;
    return fresh;
}

int nm_env_publish(const char *name, const char *value)
{
    char *entry = NULL;
    if (value != NULL) {
        size_t name_length = strlen(name), value_length = strlen(value);
        entry = malloc(name_length + value_length + 2);
        if (entry == NULL)
            return ENOMEM;
        memcpy(entry, name, name_length);
        entry[name_length] = '=';
        memcpy(entry + name_length + 1, value, value_length + 1);
    }
    for (;;) { /* again if another thread's setenv came between */
        char **old = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
        char **fresh = environment_with(old, name, entry);
        if (fresh == NULL) {
            free(entry);
            return ENOMEM;
        }
        if (__atomic_compare_exchange_n(&environ, &old, fresh, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            keep_published(fresh);
            return 0;
        }
        free(fresh - 1);
    }
}

/* -- numbers and text -- */

bool nm_number(const char *text, size_t length, uint64_t *out)
{
    uint64_t value = 0;
    if (length == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned)(unsigned char)text[i] - '0';
        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

size_t nm_copy(char *out, size_t size, const char *text)
{
    size_t length = 0;
    if (size == 0)
        return 0;
    while (length < size - 1 && text[length] != '\0') {
        out[length] = text[length];
        length++;
    }
    out[length] = '\0';
    return length;
}

void nm_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f)
            c[0] = c[1] = '?';
    }
}

/* -- telling -- */

/* For a stderr that takes nothing: a full pipe, a stopped terminal. The line is then dropped. */
#define SAY_WAIT_MS 100
#define COLUMNS_DEFAULT 80

static const char prefix[] = "nodemgr: ";
/* 0: not checked. The identity of the file is one word, so no thread reads half of a new one. */
static _Atomic uint64_t stderr_word;
#define STDERR_CLOSED 1

/* Two files have the same word with a chance of 2^-63. */
static uint64_t stderr_now(void)
{
    struct nm_file_id id;
    if (!nm_fd_id(STDERR_FILENO, &id))
        return STDERR_CLOSED;
    return (id.inode * 0x9e3779b97f4a7c15 ^ id.device * 0xc2b2ae3d27d4eb4f) | 2;
}

void nm_say_prepare(void)
{
    uint64_t unchecked = 0;
    if (atomic_load(&stderr_word) == 0)
        atomic_compare_exchange_strong(&stderr_word, &unchecked, stderr_now());
}

/* Number 2 may be a file or a connection of the program's own by now. */
bool nm_say_is_stderr(void)
{
    nm_say_prepare();
    const uint64_t known = atomic_load(&stderr_word);
    return known != STDERR_CLOSED && known == stderr_now();
}

void nm_say_adopt(void)
{
    atomic_store(&stderr_word, stderr_now());
}

static void write_stderr(const char *text, size_t length)
{
    int saved = errno;
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    /* POLLERR: no reader, SIGPIPE */
    if (nm_say_is_stderr() && poll(&ready, 1, SAY_WAIT_MS) == 1 && ready.revents == POLLOUT) {
        ssize_t ignored = write(STDERR_FILENO, text, length);
        (void)ignored;
    }
    errno = saved;
}

void nm_say(const char *format, ...)
{
    char line[1400];
    size_t start = nm_copy(line, sizeof line, prefix);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + start, sizeof line - start - 1, format, arguments);
    va_end(arguments);
    nm_printable(line);
    size_t length = strlen(line);
    line[length++] = '\n';
    write_stderr(line, length);
}

bool nm_say_terminal(void)
{
    struct winsize ignored;
    pid_t foreground;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &ignored) == 0 &&
           (ioctl(STDERR_FILENO, TIOCGPGRP, &foreground) < 0 || foreground == getpgrp());
}

static size_t columns_of_stderr(void)
{
    struct winsize window = {0};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col
                                                                               : COLUMNS_DEFAULT;
}

bool nm_say_fits(const char *text, const char *tail)
{
    return strlen(prefix) + strlen(text) + strlen(tail) < columns_of_stderr();
}

void nm_say_over(const char *text, const char *tail)
{
    static const char erase[] = "\r\033[K";
    char line[512];
    size_t columns = columns_of_stderr(), length = nm_copy(line, sizeof line, erase),
           end = columns + length < sizeof line ? columns + length : sizeof line;
    if (*text != '\0') { /* a line that wraps could not be written over */
        length += nm_copy(line + length, sizeof line - length, prefix);
        size_t start = length, needed = length + strlen(tail);
        length += nm_copy(line + length, end > needed ? end - needed : 1, text);
        nm_copy(line + length, sizeof line - length, tail);
        nm_printable(line + start);
    }
    write_stderr(line, strlen(line));
}
