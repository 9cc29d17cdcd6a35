/* supervisor.h: nodemgr-supervisor, the program: starts batch jobs as their users, and records
 * their ends.
 *
 * The launcher (launcher.c) has the rights that the manager gave up, and forks a supervisor for
 * each attempt. The supervisor (jobs/supervise.c) is the parent of all processes of the job. It
 * outlives manager and launcher, and records the job's end.
 *
 * Knows: attempts in directories. Must not know: how one attempt is run (csrc/jobs).
 */
#ifndef NM_SUPERVISOR_H
#define NM_SUPERVISOR_H

#include "jobs/jobs.h"

/* -- directory.c -- */

/* Claims the attempt `name` in `directory` and supervises it, as nm_supervise. */
int nm_supervise_directory(int directory, const char *name, int manager);

/* -- launcher.c -- */

/* Serves the manager at the other end of `socket`, or any process of this user that connects to
   it (`listens`), until the manager is gone and no supervisor of its own runs any more. */
int nm_launch(int socket, bool listens, const char *jobs);

#endif
