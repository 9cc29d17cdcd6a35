/* runner.h: nodemgr-runner starts batch jobs inside a container, as the user that started it.
 *
 * Knows: the wire, csrc/jobs. Must not know: GPUs, quotas, queues, the manager's files.
 *
 * It can do no more than any process of this user in this container. It connects to the
 * environment's client socket. The kernel tells the manager its user and container, and so whose
 * jobs it may start.
 */
#ifndef NM_RUNNER_H
#define NM_RUNNER_H

#include "jobs/jobs.h"
#include "wire/wire.h"

enum { NM_LETTER_FDS = 4, NM_FAULT_BYTES = 400, NM_ANSWER_MS = 30000 };

/* -- contact.c -- */

/* One packet of the manager. The reader closes the descriptors. */
struct nm_letter {
    struct nm_message message;
    char bytes[NM_PACKET_BYTES + 1];
    int fds[NM_LETTER_FDS];
    size_t fd_count;
};

/* A connection to the manager of the environment whose directory NODEMGR_ENV_DIR names; -1:
   `fault`. */
int nm_contact_open(char fault[NM_FAULT_BYTES]);
bool nm_contact_send(int fd, struct nm_build *build);
/* The next valid packet; false: the connection has ended, or (errno EAGAIN) nothing came within
   timeout_ms. */
bool nm_contact_receive(int fd, int timeout_ms, struct nm_letter *letter);
void nm_letter_close(struct nm_letter *letter);

/* A packet that names an attempt. */
struct nm_named {
    char job[65];
    uint64_t attempt;
};

void nm_build_named(struct nm_build *build, enum nm_verb verb, const struct nm_named *named);
/* FAILED. */
void nm_contact_fail(int fd, const struct nm_named *named, const char *why);

/* -- claim.c -- */

/* Claims the attempt and supervises it; returns the exit status. Runs in a process of its own,
 * with signals as at its start. The supervisor sends CLAIM, then RUNNING or FAILED. The manager
 * answers CLAIMED with the files of the attempt, or DENY: another process has it, or it is over. */
int nm_run_attempt(const struct nm_named *named);

/* -- rights.c -- */

/* Drops the capabilities that the container's first process cannot have: the starter may have
   entered with more. */
void nm_keep_rights_of_container(void);

/* -- runner.c -- */

/* Sends RUNNER; the manager answers ACK or DENY. false: not accepted, or no manager (`fault`). */
bool nm_runner_begin(char fault[NM_FAULT_BYTES]);
/* Serves START until the manager sends DISMISS and none of its supervisors runs. Sends FAILED if
   it could not fork. */
int nm_runner_serve(void);

#endif
