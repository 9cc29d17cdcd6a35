/* rights.c: limits the capabilities of a runner; see runner.h. */
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/prim.h"
#include "runner/runner.h"

static const char bounding[] = "\nCapBnd:\t";

/* The capabilities that a process of the container can have at most. */
static bool of_first_process(uint64_t *rights)
{
    char text[4096], *at;
    if (nm_file_read("/proc/1/status", text, sizeof text) < 0 ||
        (at = strstr(text, bounding)) == NULL)
        return false;
    *rights = 0;
    for (at += sizeof bounding - 1; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
        *rights = *rights << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return true;
}

void nm_keep_rights_of_container(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{0}};
    uint64_t rights;
    if (!of_first_process(&rights) || syscall(SYS_capget, &header, sets) != 0)
        return;
    for (unsigned number = 0; number < 64; number++)
        if ((rights >> number & 1) == 0)
            prctl(PR_CAPBSET_DROP, number, 0, 0,
                  0); /* refused without the right, when it has none of them either */
    for (unsigned half = 0; half < 2; half++) {
        const __u32 kept = (__u32)(rights >> 32 * half);
        sets[half].effective &= kept;
        sets[half].permitted &= kept;
        sets[half].inheritable &= kept;
    }
    syscall(SYS_capset, &header, sets);
}
