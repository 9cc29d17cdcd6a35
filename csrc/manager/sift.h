/*
 * Datagrams of one socket, many at a time: those that no key of theirs has signed are counted and
 * dropped before Python sees them.
 *
 * Knows: the env that a packet names, the keys of envs, the sender's address. Must not know:
 * clients, epochs, counters, a clock but that of this thread's processor time. Part of the
 * manager's extension alone.
 *
 * Hosts and known addresses are counted in tables of fixed size by a keyed hash: two that share a
 * place share its count, and no sender can choose whose.
 */
#ifndef NM_SIFT_H
#define NM_SIFT_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum {
    NM_SIFT_PACKETS = 64, /* in one call */
    NM_SIFT_PACKET_BYTES = 1201,
    NM_SIFT_HOST_BYTES = 46,
    NM_SIFT_ENV_BYTES = 64,
    /* packets in a second that proved nothing, up to which a host is quiet */
    NM_SIFT_QUIET = 16,
    NM_SIFT_KNOWN_MOST = 5000 /* packets of a known address in a second that are looked at */
};

/* Which packets of unknown addresses are checked at all. Those of known addresses always are, up
   to a number in each window. */
enum nm_sift_level { NM_SIFT_ALL, NM_SIFT_OF_QUIET_HOSTS, NM_SIFT_OF_KNOWN };

struct nm_sifted {
    uint16_t size;
    uint16_t key;                  /* which of the env's keys has signed it */
    char host[NM_SIFT_HOST_BYTES]; /* of the sender, as text */
    uint16_t port;
    uint32_t flow, scope; /* of IPv6 */
    int is_ipv6;
    char bytes[NM_SIFT_PACKET_BYTES];
};

/* What one call found. Counts are of packets. */
struct nm_sift_batch {
    unsigned received, malformed, forged, throttled;
    unsigned signed_count;  /* the first of `packets` are those that were signed, as they came */
    uint64_t strangers_ns; /* of processor time, for packets that proved nothing */
    struct nm_sifted packets[NM_SIFT_PACKETS];
};

struct nm_sift;

/* NULL: no memory. */
struct nm_sift *nm_sift_new(void);
void nm_sift_free(struct nm_sift *sift);
/* The env's keys, 32 bytes each, in place of those before; count 0: none. false: no memory. */
int nm_sift_set_keys(struct nm_sift *sift, const char *env, const void *keys, unsigned count);
/* Always look at this address's packets, from now on (by 1) or no longer (by -1). */
void nm_sift_know(struct nm_sift *sift, const char *host, unsigned port, int by);
/* Another second: what was counted of hosts and addresses is forgotten. */
void nm_sift_set_window(struct nm_sift *sift, uint32_t window);
/* Up to NM_SIFT_PACKETS of the socket, which does not block. NULL: errno. */
const struct nm_sift_batch *nm_sift_receive(struct nm_sift *sift, int fd, enum nm_sift_level level);
/* The same of one packet that came some other way. */
const struct nm_sift_batch *nm_sift_take(struct nm_sift *sift, const void *packet, size_t size,
                                         const char *host, unsigned port, enum nm_sift_level level);
/* cffi: end */

#endif
