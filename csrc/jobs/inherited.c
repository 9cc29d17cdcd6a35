/* inherited.c: closes the descriptors that a process has inherited.
 *
 * Knows: the limit in a container may be a thousand million, so only open numbers are tried.
 */
#include "jobs/jobs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>

enum { FIRST = 3, RANGE_AT_EXEC = 4 /* CLOSE_RANGE_CLOEXEC */ };

static bool close_range_of(unsigned first, unsigned last, bool at_exec)
{
#ifdef SYS_close_range
    return first > last || syscall(SYS_close_range, first, last, at_exec ? RANGE_AT_EXEC : 0) == 0;
#else
    (void)at_exec;
    return first > last;
#endif
}

void nm_close_others(int kept, bool at_exec)
{
    const unsigned after = kept >= FIRST ? (unsigned)kept + 1 : FIRST;
    const struct dirent *entry;
    DIR *all;
    if (close_range_of(FIRST, after - 2, at_exec) && close_range_of(after, ~0u, at_exec))
        return;
    if ((all = opendir("/proc/self/fd")) == NULL)
        return;
    while ((entry = readdir(all)) != NULL) {
        const int fd = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : -1;
        if (fd < FIRST || fd == kept || fd == dirfd(all))
            continue;
        if (at_exec)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
        else
            close(fd);
    }
    closedir(all);
}
