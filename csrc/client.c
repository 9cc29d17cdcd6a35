/* client.c: see client.h. */
#include "client.h"

int nodemgr_abi(void)
{
    return 1;
}

int nodemgr_managed(void)
{
    return 0;
}

int nodemgr_setting(const char *key, char *out, size_t size)
{
    (void)key, (void)out, (void)size;
    return -1;
}

int nodemgr_begin(int64_t gpus, int64_t memory_bytes, int64_t wait_ms, const char *command)
{
    (void)gpus, (void)memory_bytes, (void)wait_ms, (void)command;
    return NODEMGR_UNMANAGED;
}

int nodemgr_poll(int timeout_ms, char *line, size_t size)
{
    (void)timeout_ms;
    return nodemgr_state(line, size);
}

int nodemgr_cancel(void)
{
    return NODEMGR_UNMANAGED;
}

int nodemgr_release(void)
{
    return NODEMGR_UNMANAGED;
}

int nodemgr_state(char *line, size_t size)
{
    nm_copy(line, size, "");
    return NODEMGR_UNMANAGED;
}

int nodemgr_lease(char *out, size_t size)
{
    (void)out, (void)size;
    return -1;
}

int nodemgr_ask(const char *what, const char *argument, char *out, size_t size, int timeout_ms)
{
    (void)what, (void)argument, (void)out, (void)size, (void)timeout_ms;
    return -1;
}

static int (*waiter_of_python)(void);

void nodemgr_set_waiter(int (*waiter)(void))
{
    waiter_of_python = waiter;
}

int (*nm_client_waiter(void))(void)
{
    return waiter_of_python;
}

void nodemgr_publish_env(const char *name, const char *value)
{
    nm_env_publish(name, value);
}

const struct nm_lease *nm_client_lease(void)
{
    return NULL;
}

int nm_client_row(const struct nm_lease *lease, const char *uuid)
{
    (void)lease, (void)uuid;
    return -1;
}

int nm_client_charge(uint32_t row, uint64_t bytes, uint32_t *number)
{
    (void)row, (void)bytes, (void)number;
    return NM_FENCED;
}

void nm_client_discharge(uint32_t number, uint32_t row, uint64_t bytes)
{
    (void)number, (void)row, (void)bytes;
}

int nm_client_acquire_blocking(void)
{
    return NODEMGR_UNMANAGED;
}

const char *nm_client_fence_reason(void)
{
    return "";
}
