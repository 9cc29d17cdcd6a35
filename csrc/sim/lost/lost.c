/* lost.c: see lost.h. */
#include "sim/lost/lost.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* As in older.h. */
#if defined(__x86_64__)
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_once,pthread_once@GLIBC_2.17");
#endif

enum { MOST_NODES = 64 }; /* mapped at one time; those beyond are not outlived */
static _Atomic uintptr_t mapped[MOST_NODES];
static _Atomic size_t size_bytes;
static struct sigaction former;
static atomic_bool told; /* threads may meet the loss at one time */

static const char line[] = "nodemgr: a process truncated the state file of the simulated node:"
                           " its GPUs are lost. A restart of the manager makes a new node\n";

/* False: the address is in no node. */
static bool replace_by_zeros(uintptr_t address) {
    for (int index = 0; index < MOST_NODES; index++) {
        uintptr_t base = atomic_load(&mapped[index]);
        if (base == 0 || address - base >= size_bytes) continue;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        if (mmap((void *)base, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
            return false;
        /* without a log it fails */
        return atomic_exchange(&told, true) || write(STDERR_FILENO, line, sizeof line - 1) != 0;
    }
    return false;
}

static void pass_on(int number, siginfo_t *info, void *context) {
    if (former.sa_flags & SA_SIGINFO) {
        former.sa_sigaction(number, info, context);
    } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
        former.sa_handler(number);
    } else if (info->si_code > 0 || former.sa_handler == SIG_DFL) {
        sigaction(number, &former, NULL);      /* a fault comes again at the return */
        if (info->si_code <= 0) raise(number); /* one that a process sent does not */
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int error = errno;
    if (info->si_code <= 0 || !replace_by_zeros((uintptr_t)info->si_addr))
        pass_on(number, info, context);
    errno = error;
}

static void install(void) {
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, NULL, &former); /* known before the first of ours can come */
    sigaction(SIGBUS, &ours, NULL);
}

void nm_sim_outlive(void *mapping, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_bytes = bytes;
    pthread_once(&once, install);
    for (int index = 0; index < MOST_NODES; index++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&mapped[index], &none, (uintptr_t)mapping)) return;
    }
}

void nm_sim_forget(void *mapping) {
    for (int index = 0; index < MOST_NODES; index++) {
        uintptr_t base = (uintptr_t)mapping;
        atomic_compare_exchange_strong(&mapped[index], &base, 0);
    }
}
