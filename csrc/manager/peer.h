/* peer.h: the process at the other end of a socket, from the kernel, and the processes above it.
 * For the manager alone.
 *
 * Knows: SO_PEERCRED and similar options, pidfds, /proc/PID/stat. Must not know: environments and
 * their users.
 *
 * A request of a new process makes some forty system calls before it is read. From Python they take
 * three times as long, and the client waits for them.
 */
#ifndef NM_PEER_H
#define NM_PEER_H

#include <stdint.h>

/* cffi: begin */
enum { NM_PEER_GROUPS = 256, NM_ANCESTORS = 64 };

struct nm_peer {
    /* at the connect; pid 0: it is in a PID namespace that this process cannot see */
    int32_t pid, uid, gid;
    int32_t group_count;   /* nm_peer_accept, nm_peer_credentials; -1: more than fit */
    uint32_t group[256];
    int32_t pidfd;         /* nm_peer_identify: the caller closes it */
    /* nm_peer_identify: the start of the process in clock ticks after boot */
    uint64_t start_ticks;
};

/* The next connection of a listening SOCK_SEQPACKET socket, with its peer's user and groups.
   Returns a non-blocking descriptor that reports credentials with each packet, or -errno. */
int nm_peer_accept(int listener, struct nm_peer *peer);
/* User and groups of the process that connected. 0 or -errno. */
int nm_peer_credentials(int fd, struct nm_peer *peer);
/* The process that connected, if it lives. 0; -ESRCH: it has ended; another -errno: unknown now. */
int nm_peer_identify(int fd, struct nm_peer *peer);
/* The PIDs above a process, its parent first, init last. Returns how many. */
int nm_ancestors(int32_t pid, int32_t *out); /* out: NM_ANCESTORS */
/* cffi: end */

#endif
