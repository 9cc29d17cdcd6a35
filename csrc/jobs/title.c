/* title.c: the name of a supervisor in ps: its attempt.
 *
 * Knows: where the kernel reads a process's command line.
 */
#include "jobs/jobs.h"

#include <stdio.h>
#include <string.h>

static char *title;
static size_t title_bytes;

void nm_keep_title(int argc, char *argv[])
{
    title = argv[0];
    title_bytes = argc > 0 ? (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]) : 0;
}

void nm_set_title(const char *attempt)
{
    memset(title, 0, title_bytes);
    snprintf(title, title_bytes, "nodemgr: job %s", attempt);
}
