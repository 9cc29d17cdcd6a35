/* timed_kernels.h: PTX of kernels that take the time in their names, such as sleep_us_5.
 *
 * On a GPU a kernel spins until the GPU's timer has gone on by that time. The simulated driver goes
 * by the name and reads no code.
 */
#ifndef TIMED_KERNELS_H
#define TIMED_KERNELS_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long long kernel_ns(const char *name)
{
    static const struct {
        const char *prefix;
        unsigned long long ns;
    } units[] = {{"sleep_ns_", 1}, {"sleep_us_", 1000}, {"sleep_ms_", 1000000}};
    for (size_t unit = 0; unit < sizeof units / sizeof *units; unit++)
        if (strncmp(name, units[unit].prefix, strlen(units[unit].prefix)) == 0)
            return strtoull(name + strlen(units[unit].prefix), NULL, 10) * units[unit].ns;
    return 0;
}

/* A module's text; valid until the next call. */
static const char *timed_kernels(const char *const *names, size_t count)
{
    static char text[4096];
    size_t used = (size_t)snprintf(text, sizeof text,
                                   ".version 6.0\n.target sm_60\n.address_size 64\n");
    for (size_t index = 0; index < count; index++) {
        int length = snprintf(text + used, sizeof text - used,
                              ".visible .entry %s()\n{\n"
                              "  .reg .u64 %%now, %%end;\n  .reg .pred %%early;\n"
                              "  mov.u64 %%now, %%globaltimer;\n"
                              "  add.u64 %%end, %%now, %llu;\n"
                              "AGAIN:\n  mov.u64 %%now, %%globaltimer;\n"
                              "  setp.lt.u64 %%early, %%now, %%end;\n"
                              "  @%%early bra AGAIN;\n  ret;\n}\n",
                              names[index], kernel_ns(names[index]));
        if (length < 0 || (size_t)length >= sizeof text - used)
            abort();
        used += (size_t)length;
    }
    return text;
}

#endif
