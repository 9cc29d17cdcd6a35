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

/* Claims the attempt `name` in `directory` and supervises it, as nm_supervise, with a cgroup below
   `scope` (NULL: without one). */
int nm_supervise_directory(int directory, const char *name, int manager, const char *scope);

/* -- launcher.c -- */

/* Serves the manager at the other end of `socket`, or any process of this user that connects to
   it (`listens`), until the manager is gone and no supervisor of its own runs any more. `scope`:
   below which each job gets a cgroup; NULL: none. */
int nm_launch(int socket, bool listens, const char *jobs, const char *scope);

/* -- runs.c -- */

/* Whether this is the name of a command's cgroup, not of a job's. */
bool nm_run_is_leaf(const char *name);
/* Moves the process of a pidfd into its cgroup. `events`: of inotify. Returns why not, or NULL. */
const char *nm_run_enter(int leaf, int pidfd, int events);
/* Takes the events, and removes the cgroups of commands whose processes have ended. */
void nm_run_sweep(const char *scope, int events);

/* -- down.c -- */

/* The node goes down: has all supervisors below `jobs` end their jobs, and waits for them. */
int nm_end_all(const char *jobs);

/* -- scope.c -- */

#define NM_SCOPE_HANGS 2 /* an ordinary user's systemd does not answer: do not ask again */
/* Makes the scope by systemd, if it is not there. Returns an exit status. */
int nm_scope_make(const char *scope);
/* Makes it if it is not there, and moves this process into it. false: it cannot. */
bool nm_scope_enter(const char *scope);
/* In the new scope: prepares it, and leaves a process that keeps it. Returns an exit status. */
int nm_scope_keep(const char *scope);

#endif
