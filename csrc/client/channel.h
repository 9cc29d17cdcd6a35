/* channel.h: the connection to the manager, a SEQPACKET socket or signed UDP. It opens, and carries
 * packets one by one.
 *
 * Knows: client.conf's address, sockets, descriptors in packets; for UDP the MAC, epoch, client id
 * and counters.
 * Must not know: the meaning of a packet, retries.
 *
 * No call blocks. A program that closes all descriptors may open a file of its own under the same
 * number. Therefore descriptors have high numbers, and each use first checks that the number still
 * is the client's socket.
 */
#ifndef NM_CHANNEL_H
#define NM_CHANNEL_H

#include "base/prim.h"
#include "conf/conf.h"
#include "wire/wire.h"

#define NM_PACKET_FDS 34 /* a ledger's two, and two for each GPU's launch gate */
#define NM_ADDRESS_BYTES (NM_PATH_BYTES + 32)

struct nm_channel {
    int fd; /* -1: closed */
    struct nm_file_id id;
    bool udp;
    char address[NM_ADDRESS_BYTES]; /* for people */
    /* UDP alone. They outlive the socket, so no counter is used twice. */
    uint8_t key[NM_KEY_BYTES];
    char env[65], client[17];
    uint64_t epoch, counter, answered; /* answered: the highest counter that an answer carried */
    bool has_epoch;
    bool forbidden; /* the system lets this process open no socket */
};

struct nm_packet {
    struct nm_message message;
    char bytes[NM_PACKET_BYTES + 1];
    int fds[NM_PACKET_FDS];
    int fd_count;
    bool fds_lost; /* some descriptors found no free number here */
};

enum nm_channel_result {
    NM_CHANNEL_OK,
    NM_CHANNEL_LATER, /* nothing there, or no room now */
    NM_CHANNEL_BAD,   /* not a valid packet: dropped */
    NM_CHANNEL_LOST   /* errno has the reason; close it */
};

void nm_channel_init(struct nm_channel *channel);
/* NM_CHANNEL_OK; or NM_CHANNEL_LOST, and `fault` has the reason without the address, which is in
   channel->address. */
int nm_channel_open(struct nm_channel *channel, const struct nm_conf *conf, char *fault,
                    size_t size);
void nm_channel_close(struct nm_channel *channel);
/* Wakes a thread that polls the socket. That thread then closes the descriptor that this returns
   (-1: none). */
int nm_channel_abandon(struct nm_channel *channel);

size_t nm_channel_reserve(const struct nm_channel *channel); /* for nm_build_begin */
int nm_channel_send(struct nm_channel *channel, struct nm_build *build, const int *fds,
                    int fd_count);
/* One decoded packet. The caller owns its descriptors. */
int nm_channel_receive(struct nm_channel *channel, struct nm_packet *packet);

#endif
