/*
 * supervisor.h: nodemgr-supervisor, the program: starts batch jobs as their users, and keeps what
 * became of them.
 *
 * One program, two lives. The launcher (launcher.c) has the rights that the manager gave up; it is
 * told which attempt to begin and forks its supervisor. The supervisor (supervise.c) is the parent
 * of everything that the job starts, outlives the manager and the launcher, and records how the job
 * ended.
 *
 * Knows: attempts in directories, the manager's orders. Must not know: how one attempt is run
 * (csrc/jobs).
 */
#ifndef NM_SUPERVISOR_H
#define NM_SUPERVISOR_H

#include "jobs/jobs.h"

/* -- directory.c -- */

/* Claims the attempt `name` in `directory` and supervises it, as nm_supervise. */
int nm_supervise_directory(int directory, const char *name, int manager);

/* -- launcher.c -- */

/* Serves the manager at the other end of `socket`, or whoever of this user connects to it
   (`listens`), until the manager is gone and no supervisor of its own runs any more. */
int nm_launch(int socket, bool listens, const char *jobs);

#endif
