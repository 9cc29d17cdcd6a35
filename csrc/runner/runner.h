/*
 * nodemgr-runner: starts batch jobs inside a container, as the user who started it there. What its
 * parts share.
 *
 * Knows: the wire, csrc/jobs (how a job is run, by whomever). Must not know: GPUs, quotas, queues,
 * the manager's files.
 *
 * It is a guest: whatever it can do, every process of this user in this container can. It speaks to
 * the manager over the environment's client socket, as all do; whose jobs it starts follows from
 * who the kernel says that it is.
 *
 *   runner -> manager   RUNNER; FAILED job attempt reason, where it could not fork
 *   manager -> runner   ACK, or DENY: it is not wanted; START job attempt; DISMISS
 *   supervisor -> manager, on a connection of its own   CLAIM job attempt; RUNNING job attempt, or
 *                 FAILED
 *   manager -> supervisor   CLAIMED with the files of the attempt, or DENY: it is somebody else's,
 *              or over
 */
#ifndef NM_RUNNER_H
#define NM_RUNNER_H

#include "jobs/jobs.h"
#include "wire/wire.h"

enum { NM_LETTER_FDS = 4, NM_FAULT_BYTES = 300, NM_ANSWER_MS = 30000 };

/* -- contact.c -- */

/* One packet of the manager's. The descriptors are the reader's to close. */
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
/* The next packet that is one; false: the connection has ended, or (errno EAGAIN) nothing came
   within timeout_ms. */
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

/* Claims the attempt and supervises it; the exit status. In a process of its own, whose signals
   are as at its birth. */
int nm_run_attempt(const struct nm_named *named);

/* -- rights.c -- */

/* Gives up what the container's first process may not do either: who started us may have been
   let in with more. */
void nm_keep_rights_of_container(void);

/* -- runner.c -- */

/* Says that it is here; false: it is not wanted, or there is no manager (`fault`). */
bool nm_runner_begin(char fault[NM_FAULT_BYTES]);
/* Serves until it is dismissed and none of its supervisors runs. */
int nm_runner_serve(void);

#endif
