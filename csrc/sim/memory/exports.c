/* exports.c: see exports.h. */
#include "sim/memory/exports.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sim/node/deposits.h"

enum { LOWEST_DESCRIPTOR = 40 };

typedef struct {
    uint64_t number; /* of the export (deposits.h); 0: it has none */
    uint64_t serial; /* then, in `set` */
    nm_physical *physical; /* one of the two is set */
    nm_pool *pool;
    int deposit; /* of the physical memory; -1: none */
    bool open;
} reference;

static int set = -1; /* epoll */
static uint64_t last_serial, last_number;
static reference *references;
static _Atomic uint32_t count;
static uint32_t room;

static int moved_high(int descriptor) {
    int high = descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) : -1;
    if (high >= 0) close(descriptor);
    return high >= 0 ? high : descriptor;
}

/* A packet with the ticket, and with the export's life. */
static bool send_life(int socket, const nm_ticket *ticket, int life) {
    struct iovec text = {(void *)ticket, sizeof *ticket};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof life)];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof life),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &life, sizeof life);
    struct msghdr message = {.msg_iov = &text,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *ticket;
}

/* The export's life, which shows its exporter whether it is open: a lock in the node's second
   file; in a process without that file, an entry of `set`. */
static int new_life(void) {
    int life = nm_sim_export_open(&nm_the_driver.node, &last_number);
    if (life >= 0) return life;
    last_number = 0;
    life = eventfd(0, EFD_CLOEXEC);
    if (set < 0) set = moved_high(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.data.u64 = ++last_serial};
    if (set >= 0 && life >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, life, &event) == 0) return life;
    if (life >= 0) close(life);
    return -1;
}

/* A socket with a packet in its queue, which can be read again and again. The packet holds the
   life open while the socket or an import has it. */
int nm_export_open(const nm_ticket *ticket) {
    int pair[2], life = new_life();
    bool paired = life >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0;
    bool sent = paired && send_life(pair[1], ticket, life);
    if (life >= 0) close(life);
    if (paired) close(pair[1]);
    if (paired && !sent) close(pair[0]);
    return sent ? pair[0] : -1;
}

bool nm_export_read(nm_ticket *ticket, int descriptor) {
    return recv(descriptor, ticket, sizeof *ticket, MSG_PEEK | MSG_DONTWAIT) ==
           (ssize_t)sizeof *ticket;
}

int nm_export_hold(int descriptor) {
    nm_ticket ticket;
    struct iovec text = {&ticket, sizeof ticket};
    int life = -1;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof life)];
    } control;
    struct msghdr message = {.msg_iov = &text,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(descriptor, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header && header->cmsg_type == SCM_RIGHTS) memcpy(&life, CMSG_DATA(header), sizeof life);
    return moved_high(life);
}

bool nm_export_keeps(nm_physical *physical, nm_pool *pool) {
    if (count == room) {
        uint32_t more = room ? room * 2 : 16;
        reference *grown = realloc(references, more * sizeof *grown);
        if (!grown) return false;
        references = grown;
        room = more;
    }
    const nm_sim_node *node = &nm_the_driver.node;
    reference made = {.number = last_number, .physical = physical, .pool = pool, .deposit = -1};
    if (last_number == 0) made.serial = last_serial;
    if (last_number != 0 && physical && physical->device >= 0) {
        made.deposit = nm_sim_deposit_add(node, last_number, physical->device, (uintptr_t)physical,
                                          physical->bytes);
    }
    references[count++] = made;
    if (physical) physical->attachments++;
    if (pool) pool->exports++;
    return true;
}

/* Marks the references of lives in `set` that are open somewhere. False: unknown. */
static bool look_at_set(void) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    FILE *listing = fopen(path, "re");
    if (!listing) return false;
    while (fgets(line, sizeof line, listing)) {
        const char *data = strncmp(line, "tfd:", 4) == 0 ? strstr(line, "data:") : NULL;
        uint64_t serial = data ? strtoull(data + 5, NULL, 16) : 0;
        for (uint32_t index = 0; serial != 0 && index < count; index++) {
            if (references[index].serial == serial) references[index].open = true;
        }
    }
    fclose(listing);
    return true;
}

static bool look(void) {
    for (uint32_t index = 0; index < count; index++) {
        reference *seen = &references[index];
        seen->open = seen->number != 0 && nm_sim_export_is_open(&nm_the_driver.node, seen->number);
    }
    return set < 0 || look_at_set();
}

void nm_exports_settle(void) {
    if (count == 0 || !look()) return;
    uint32_t kept = 0;
    for (uint32_t index = 0; index < count; index++) {
        reference seen = references[index];
        if (seen.open) {
            references[kept++] = seen;
            continue;
        }
        nm_sim_deposit_drop(&nm_the_driver.node, seen.deposit);
        if (seen.physical) {
            nm_physical_detach(seen.physical);
        } else {
            seen.pool->exports--;
            nm_pool_end_if_done(seen.pool);
        }
    }
    count = kept;
}

bool nm_exports_any(void) { return atomic_load_explicit(&count, memory_order_relaxed) != 0; }

void nm_exports_reset(void) {
    if (set >= 0) close(set);
    set = -1;
    count = 0;
}
