/* children.c: the supervisors that a launcher or a runner has forked, and processes that a killed
 * supervisor leaves.
 *
 * Knows: processes below this one.
 */
#include "jobs/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

bool nm_children_make_room(struct nm_children *children)
{
    if (children->count == children->room) {
        const size_t room = children->room == 0 ? 64 : children->room * 2;
        struct nm_child *rows = realloc(children->rows, room * sizeof *rows);
        if (rows == NULL)
            return false;
        children->rows = rows;
        children->room = room;
    }
    return true;
}

void nm_children_add(struct nm_children *children, pid_t pid, const char *name)
{
    struct nm_child *row = &children->rows[children->count++];
    row->pid = pid;
    snprintf(row->name, sizeof row->name, "%.*s", NM_JOB_NAME_BYTES - 1, name);
}

bool nm_children_has(const struct nm_children *children, const char *name)
{
    for (size_t index = 0; index < children->count; index++)
        if (strcmp(children->rows[index].name, name) == 0)
            return true;
    return false;
}

/* Children that are no supervisors were left by a killed one. */
static void end_strays(struct nm_children *children)
{
    struct nm_swept swept = {0, 0};
    pid_t *living = calloc(children->count + 1, sizeof *living);
    for (size_t index = 0; living != NULL && index < children->count; index++)
        living[index] = children->rows[index].pid;
    if (living != NULL) {
        swept = nm_signal_below(SIGKILL,
                                (struct nm_spared){.trees = living, .tree_count = children->count});
        children->strays = swept.found < 0 || swept.found > swept.refused;
    }
    free(living);
}

void nm_children_reap(struct nm_children *children)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (size_t index = 0; index < children->count; index++)
            if (children->rows[index].pid == pid) {
                children->rows[index] = children->rows[--children->count];
                children->strays = children->strays || WIFSIGNALED(status);
                break;
            }
    if (children->strays)
        end_strays(children);
}
