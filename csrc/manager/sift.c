/* sift.c: see sift.h. */
#include "manager/sift.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/prim.h"
#include "wire/mac.h"
#include "wire/wire.h"

enum { KEY_BYTES = NM_KEY_BYTES, MOST_KEYS = 2, NAME_BYTES = 16, HOSTS = 8192, ADDRESSES = 32768 };

/* The keys of an environment. */
struct env_row {
    char env[NM_SIFT_ENV_BYTES + 1];
    size_t env_bytes;
    struct nm_hmac_key keys[MOST_KEYS];
    unsigned key_count;
};

/* A count within a window. */
struct tally {
    uint32_t window, count;
};

struct nm_sift {
    uint64_t seed;
    uint32_t window;
    struct env_row *rows;
    size_t row_count, row_room;
    struct tally strange[HOSTS]; /* packets of a host without a valid signature */
    struct tally looked[ADDRESSES];
    uint16_t known[ADDRESSES]; /* number of known addresses at this place */
    struct sockaddr_storage from[NM_SIFT_PACKETS];
    struct nm_sift_batch batch;
};

struct nm_sift *nm_sift_new(void)
{
    struct nm_sift *sift = calloc(1, sizeof *sift);
    if (sift != NULL)
        sift->seed = nm_random();
    return sift;
}

void nm_sift_free(struct nm_sift *sift)
{
    free(sift->rows);
    free(sift);
}

void nm_sift_set_window(struct nm_sift *sift, uint32_t window)
{
    sift->window = window;
}

/* -- keys -- */

static struct env_row *find_row(const struct nm_sift *sift, const char *env, size_t env_bytes)
{
    for (size_t index = 0; index < sift->row_count; index++)
        if (sift->rows[index].env_bytes == env_bytes &&
            memcmp(sift->rows[index].env, env, env_bytes) == 0)
            return &sift->rows[index];
    return NULL;
}

static struct env_row *add_row(struct nm_sift *sift, const char *env)
{
    if (sift->row_count == sift->row_room) {
        const size_t room = sift->row_room == 0 ? 16 : sift->row_room * 2;
        struct env_row *rows = realloc(sift->rows, room * sizeof *rows);
        if (rows == NULL)
            return NULL;
        sift->rows = rows;
        sift->row_room = room;
    }
    struct env_row *row = &sift->rows[sift->row_count++];
    snprintf(row->env, sizeof row->env, "%s", env);
    row->env_bytes = strlen(row->env);
    return row;
}

int nm_sift_set_keys(struct nm_sift *sift, const char *env, const void *keys, unsigned count)
{
    struct env_row *row = find_row(sift, env, strlen(env));
    if (count == 0) {
        if (row != NULL)
            *row = sift->rows[--sift->row_count];
        return true;
    }
    if (row == NULL && (row = add_row(sift, env)) == NULL)
        return false;
    row->key_count = count < MOST_KEYS ? count : MOST_KEYS;
    for (unsigned key = 0; key < row->key_count; key++)
        nm_hmac_prepare(&row->keys[key], (const char *)keys + (size_t)key * KEY_BYTES, KEY_BYTES);
    return true;
}

/* -- addresses -- */

static uint64_t hash(const struct nm_sift *sift, const uint8_t *bytes, size_t size)
{
    uint64_t value = sift->seed;
    for (size_t index = 0; index < size; index++) {
        value = (value ^ bytes[index]) * UINT64_C(0x9e3779b97f4a7c15);
        value ^= value >> 29;
    }
    return value;
}

/* An address of either kind as one of IPv6, with its port. */
static unsigned name_of(const struct sockaddr_storage *from, uint8_t name[NAME_BYTES])
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
    const struct sockaddr_in *four = (const struct sockaddr_in *)from;
    if (from->ss_family == AF_INET6) {
        memcpy(name, &six->sin6_addr, NAME_BYTES);
        return ntohs(six->sin6_port);
    }
    memset(name, 0, NAME_BYTES);
    name[10] = name[11] = 0xff;
    memcpy(name + 12, &four->sin_addr, 4);
    return ntohs(four->sin_port);
}

/* One machine may have a whole network of IPv6 addresses. */
static struct tally *host_place(struct nm_sift *sift, const uint8_t name[NAME_BYTES])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    const bool is_four = memcmp(name, mapped, sizeof mapped) == 0;
    return &sift->strange[hash(sift, name, is_four ? NAME_BYTES : NAME_BYTES / 2) % HOSTS];
}

static size_t address_place(const struct nm_sift *sift, const uint8_t name[NAME_BYTES],
                            unsigned port)
{
    uint8_t text[NAME_BYTES + 2];
    memcpy(text, name, NAME_BYTES);
    text[NAME_BYTES] = (uint8_t)(port >> 8);
    text[NAME_BYTES + 1] = (uint8_t)port;
    return hash(sift, text, sizeof text) % ADDRESSES;
}

static uint32_t counted(const struct nm_sift *sift, const struct tally *tally)
{
    return tally->window == sift->window ? tally->count : 0;
}

static void count_one(const struct nm_sift *sift, struct tally *tally)
{
    tally->count = counted(sift, tally) + 1;
    tally->window = sift->window;
}

/* false: not the address of a socket. */
static bool parse(struct sockaddr_storage *from, const char *host, unsigned port)
{
    struct sockaddr_in *four = (struct sockaddr_in *)from;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)from;
    char text[NM_SIFT_HOST_BYTES];
    memset(from, 0, sizeof *from);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(host, "%"), host);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return true;
    }
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)port);
    return inet_pton(AF_INET6, text, &six->sin6_addr) == 1;
}

void nm_sift_know(struct nm_sift *sift, const char *host, unsigned port, int by)
{
    struct sockaddr_storage from;
    uint8_t name[NAME_BYTES];
    if (!parse(&from, host, port))
        return;
    name_of(&from, name);
    uint16_t *known = &sift->known[address_place(sift, name, port)];
    *known = (uint16_t)(*known + by);
}

/* -- packets -- */

static uint64_t processor_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

enum authenticity { MALFORMED, FORGED, SIGNED };

static enum authenticity judge(const struct nm_sift *sift, struct nm_sifted *packet)
{
    struct nm_message message;
    const uint64_t needed =
        UINT64_C(1) << NM_KEY_env | UINT64_C(1) << NM_KEY_client | UINT64_C(1) << NM_KEY_counter;
    if (nm_wire_decode(&message, packet->bytes, packet->size, NM_UP) != NM_WIRE_OK ||
        (message.present & needed) != needed)
        return MALFORMED;
    const struct env_row *row =
        find_row(sift, message.packet + message.offset[NM_KEY_env], message.length[NM_KEY_env]);
    for (unsigned key = 0; row != NULL && key < row->key_count; key++)
        if (nm_wire_verify_with(packet->bytes, packet->size, &row->keys[key]) >= 0) {
            packet->key = (uint16_t)key;
            return SIGNED;
        }
    return FORGED;
}

static void tell_sender(struct nm_sifted *packet, const struct sockaddr_storage *from)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)from;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
    packet->is_ipv6 = from->ss_family == AF_INET6;
    packet->port = ntohs(packet->is_ipv6 ? six->sin6_port : four->sin_port);
    packet->flow = packet->is_ipv6 ? ntohl(six->sin6_flowinfo) : 0;
    packet->scope = packet->is_ipv6 ? six->sin6_scope_id : 0;
    inet_ntop(from->ss_family, packet->is_ipv6 ? (const void *)&six->sin6_addr : &four->sin_addr,
              packet->host, sizeof packet->host);
}

/* Counts the packet. false: it is not checked. */
static bool is_looked_at(struct nm_sift *sift, size_t address, const struct tally *host,
                         enum nm_sift_level level)
{
    if (sift->known[address] > 0) {
        count_one(sift, &sift->looked[address]);
        return sift->looked[address].count <= NM_SIFT_KNOWN_MOST;
    }
    return level == NM_SIFT_ALL ||
           (level == NM_SIFT_OF_QUIET_HOSTS && counted(sift, host) < NM_SIFT_QUIET);
}

/* true: it is signed. */
static bool sift_one(struct nm_sift *sift, struct nm_sifted *packet,
                     const struct sockaddr_storage *from, enum nm_sift_level level)
{
    uint8_t name[NAME_BYTES];
    const unsigned port = name_of(from, name);
    struct tally *host = host_place(sift, name);
    if (!is_looked_at(sift, address_place(sift, name, port), host, level)) {
        sift->batch.throttled++;
        return false;
    }
    switch (judge(sift, packet)) {
    case SIGNED: tell_sender(packet, from); return true;
    case FORGED: sift->batch.forged++; break;
    case MALFORMED: sift->batch.malformed++; break;
    }
    count_one(sift, host);
    return false;
}

static const struct nm_sift_batch *sift_all(struct nm_sift *sift, unsigned received,
                                            uint64_t began_ns, enum nm_sift_level level)
{
    struct nm_sift_batch *batch = &sift->batch;
    batch->received = received;
    batch->malformed = batch->forged = batch->throttled = batch->signed_count = 0;
    for (unsigned index = 0; index < received; index++) {
        struct nm_sifted *packet = &batch->packets[index],
                         *next = &batch->packets[batch->signed_count];
        if (!sift_one(sift, packet, &sift->from[index], level))
            continue;
        if (next != packet)
            *next = *packet;
        batch->signed_count++;
    }
    batch->strangers_ns = (processor_ns() - began_ns) * (received - batch->signed_count) / received;
    return batch;
}

const struct nm_sift_batch *nm_sift_receive(struct nm_sift *sift, int fd, enum nm_sift_level level)
{
    const uint64_t began_ns = processor_ns();
    struct mmsghdr headers[NM_SIFT_PACKETS];
    struct iovec parts[NM_SIFT_PACKETS];
    for (unsigned index = 0; index < NM_SIFT_PACKETS; index++) {
        parts[index] = (struct iovec){sift->batch.packets[index].bytes, NM_SIFT_PACKET_BYTES};
        headers[index].msg_hdr = (struct msghdr){
            .msg_name = &sift->from[index],
            .msg_namelen = sizeof sift->from[index],
            .msg_iov = &parts[index],
            .msg_iovlen = 1,
        };
    }
    const int received = recvmmsg(fd, headers, NM_SIFT_PACKETS, MSG_DONTWAIT, NULL);
    if (received <= 0)
        return NULL;
    for (int index = 0; index < received; index++)
        sift->batch.packets[index].size = (uint16_t)headers[index].msg_len;
    return sift_all(sift, (unsigned)received, began_ns, level);
}

const struct nm_sift_batch *nm_sift_take(struct nm_sift *sift, const void *packet, size_t size,
                                         const char *host, unsigned port, enum nm_sift_level level)
{
    struct nm_sifted *first = &sift->batch.packets[0];
    if (!parse(&sift->from[0], host, port)) {
        errno = EINVAL;
        return NULL;
    }
    first->size = (uint16_t)(size < NM_SIFT_PACKET_BYTES ? size : NM_SIFT_PACKET_BYTES);
    memcpy(first->bytes, packet, first->size);
    return sift_all(sift, 1, processor_ns(), level);
}
