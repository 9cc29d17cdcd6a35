/* sift.h: datagrams of one socket, many at a time. Those without a valid signature are counted and
 * dropped before Python. Part of the manager's extension alone.
 *
 * Knows: the environment in a packet, the keys of environments, the sender's address, this thread's
 * processor time. Must not know: clients, epochs, counters, other clocks.
 *
 * Hosts and known addresses are counted in tables of fixed size by a keyed hash. Two that share a
 * place share its count, and no sender can choose the place.
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
    /* packets in a second without a valid signature, up to which a host is quiet */
    NM_SIFT_QUIET = 16,
    NM_SIFT_KNOWN_MOST = 5000 /* packets in a second that are checked for a known address */
};

/* The packets of unknown addresses that are checked. Those of known addresses always are, up to
   a number in each window. */
enum nm_sift_level { NM_SIFT_ALL, NM_SIFT_OF_QUIET_HOSTS, NM_SIFT_OF_KNOWN };

struct nm_sifted {
    uint16_t size;
    uint16_t key;                  /* the environment's key that has signed it */
    char host[NM_SIFT_HOST_BYTES]; /* the sender, as text */
    uint16_t port;
    uint32_t flow, scope; /* of IPv6 */
    int is_ipv6;
    char bytes[NM_SIFT_PACKET_BYTES];
};

/* The result of one call. Counts are of packets. */
struct nm_sift_batch {
    unsigned received, malformed, forged, throttled;
    unsigned signed_count;  /* the first of `packets` are signed, in the order of arrival */
    uint64_t strangers_ns; /* processor time for packets without a valid signature */
    struct nm_sifted packets[NM_SIFT_PACKETS];
};

struct nm_sift;

/* NULL: no memory. */
struct nm_sift *nm_sift_new(void);
void nm_sift_free(struct nm_sift *sift);
/* Replaces the environment's keys, 32 bytes each; count 0: none. false: no memory. */
int nm_sift_set_keys(struct nm_sift *sift, const char *env, const void *keys, unsigned count);
/* Marks an address as known (by 1), or no longer (by -1): its packets are always checked. */
void nm_sift_know(struct nm_sift *sift, const char *host, unsigned port, int by);
/* Begins another second: the counts of hosts and addresses return to zero. */
void nm_sift_set_window(struct nm_sift *sift, uint32_t window);
/* Up to NM_SIFT_PACKETS of the socket, which does not block. NULL: errno. */
const struct nm_sift_batch *nm_sift_receive(struct nm_sift *sift, int fd, enum nm_sift_level level);
/* The same for one packet that came in another way. */
const struct nm_sift_batch *nm_sift_take(struct nm_sift *sift, const void *packet, size_t size,
                                         const char *host, unsigned port, enum nm_sift_level level);
/* cffi: end */

#endif
