/* slow_stderr.c: a process that ends while a thread of ours says a line, to a stderr that takes it
 * late ("late") or never ("never").
 *
 * prim.c's clock, pauses and poll pass here: no time goes by but by the exit's own pauses, and
 * stderr takes something only when the exit has begun to wait. Whether it waits, and how long at
 * most, is decided by no scheduler then.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/session.h"

static sem_t speaker_waits, exit_waits;
static _Atomic uint64_t now_ns = NM_SECOND;
static _Atomic bool ending;
static bool late;

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    uint64_t ns = atomic_load(&now_ns);
    (void)clock;
    *out = (struct timespec){.tv_sec = (time_t)(ns / NM_SECOND), .tv_nsec = (long)(ns % NM_SECOND)};
    return 0;
}

/* stderr takes nothing until the exit waits. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    (void)timeout_ms;
    sem_post(&speaker_waits);
    sem_wait(&exit_waits);
    fds->revents = POLLOUT;
    return (int)count;
}

long __wrap_syscall(long number, ...)
{
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long),
         d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number != SYS_nanosleep || !atomic_load(&ending))
        return __real_syscall(number, a, b, c, d, e, f);
    if (late)
        sem_post(&exit_waits); /* and time stands still until the line is said */
    else
        atomic_fetch_add(&now_ns, (uint64_t)((const struct timespec *)a)->tv_nsec);
    return 0;
}

static void *speak(void *ignored)
{
    (void)ignored;
    nm_enter();
    nm_say_later("why memory is refused");
    nm_leave();
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t speaker;
    late = count > 1 && strcmp(arguments[1], "late") == 0;
    sem_init(&speaker_waits, 0, 0);
    sem_init(&exit_waits, 0, 0);
    pthread_create(&speaker, NULL, speak, NULL);
    sem_wait(&speaker_waits);
    atomic_store(&ending, true);
    return 0;
}
