/* narrow_signal.c: preloaded, it sends SIGINT in the worst moment: the program has just looked for
 * signals, and goes to sleep in poll(2).
 *
 * Once for each file NARROW_SIGNAL that the test makes (it is removed), in the first poll of the
 * main thread with more than MINUTES.
 */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { MINUTES_MS = 100000 };

int poll(struct pollfd *descriptors, nfds_t count, int timeout_ms)
{
    static int (*original)(struct pollfd *, nfds_t, int);
    const char *file = getenv("NARROW_SIGNAL");
    if (original == NULL)
        original = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
    if ((timeout_ms < 0 || timeout_ms > MINUTES_MS) && gettid() == getpid() && file != NULL &&
        unlink(file) == 0)
        raise(SIGINT);
    return original(descriptors, count, timeout_ms);
}
