/* simulated.c: the client as one of several in one process, in a time that the test moves.
 *
 * Linked over the client's sources with --wrap: the clock, chance, poll, the thread that beats and
 * the environment are the test's. Each client is a copy of the library, with everything of its own.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "client/session.h"

#pragma GCC visibility push(default) /* the test asks for all of it by name */

uint64_t sim_now_ns;
uint64_t sim_chance = 1;
void (*sim_wait)(int timeout_ms); /* whoever waits lets the world go on for so long at most */

static char env_dir[NM_PATH_BYTES];

uint64_t __wrap_nm_now_ns(void);
uint64_t __wrap_nm_now_ns(void)
{
    return sim_now_ns;
}

uint64_t __wrap_nm_random(void);
uint64_t __wrap_nm_random(void) /* splitmix64 */
{
    uint64_t z = (sim_chance += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    (void)fds;
    (void)count;
    if (timeout_ms > 0 && sim_wait != NULL)
        sim_wait(timeout_ms);
    return 1;
}

int __wrap_nm_thread_start(void *(*body)(void *), size_t least_stack_bytes);
int __wrap_nm_thread_start(void *(*body)(void *), size_t least_stack_bytes)
{
    (void)body;
    (void)least_stack_bytes;
    return 0;
}

const char *__wrap_nm_env_get(const char *name);
const char *__wrap_nm_env_get(const char *name)
{
    return strcmp(name, "NODEMGR_ENV_DIR") == 0 ? env_dir : NULL;
}

int __wrap_nm_env_publish(const char *name, const char *value);
int __wrap_nm_env_publish(const char *name, const char *value)
{
    (void)name;
    (void)value;
    return 0;
}

void sim_begin(const char *directory, uint64_t seed);
void sim_begin(const char *directory, uint64_t seed)
{
    nm_copy(env_dir, sizeof env_dir, directory);
    sim_chance = seed;
}

/* What the thread that beats would do now, or the one that waits. */
void sim_step(void);
void sim_step(void)
{
    nm_enter();
    nm_receive_all();
    nm_step();
    nm_leave();
}

uint64_t sim_due_ns(void);
uint64_t sim_due_ns(void)
{
    nm_enter();
    uint64_t due_ns = nm_next_due_ns();
    nm_leave();
    return due_ns;
}

uint64_t sim_rid(void);
uint64_t sim_rid(void)
{
    return nm_session.pending[NM_ACQUIRE].rid;
}
