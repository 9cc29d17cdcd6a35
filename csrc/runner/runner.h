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

enum { NM_LETTER_FDS = 2, NM_FAULT_BYTES = 400, NM_ANSWER_MS = 30000, NM_PIECE_BYTES = 65536 };

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

/* -- output.c -- */

/* A ring of bytes; `at` is the place of the oldest in all output. */
struct nm_part {
    char *bytes;
    size_t room, from, size;
    uint64_t at;
};

struct nm_output {
    struct nm_part head, tail;
    uint64_t end; /* of all output so far */
};

/* Keeps at most most_bytes (0: the most), the beginning and the newest. false: no memory. */
bool nm_output_begin(struct nm_output *output, uint64_t most_bytes);
/* At most NM_PIECE_BYTES. */
void nm_output_add(struct nm_output *output, const char *bytes, size_t size);
/* The oldest, at most NM_PIECE_BYTES in one piece, and its place; 0: none is left. */
size_t nm_output_next(const struct nm_output *output, const char **bytes, uint64_t *at);
/* The manager has all output before `until`. */
void nm_output_taken(struct nm_output *output, uint64_t until);

/* -- attempt.c -- */

/* Claims the attempt and has it supervised; returns the exit status. Runs in a process of its
 * own, with signals as at its start. It sends CLAIM; the manager answers CLAIMED with the order
 * (sealed memory), a sheet (memory for one piece of output), the time limit and the place up to
 * which it has the output, or DENY: another process has the attempt, or it is over. Then it sends
 * RUNNING, OUTPUT (a piece on the sheet) and ENDED, each until its ACK; or FAILED. */
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
