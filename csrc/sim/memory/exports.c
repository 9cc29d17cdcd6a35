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

enum { LOWEST_DESCRIPTOR = 40 };

typedef struct {
    uint64_t serial;
    nm_physical *physical; /* one of the two is set */
    nm_pool *pool;
    bool open;
} reference;

static int set = -1; /* epoll */
static uint64_t last_serial;
static reference *references;
static _Atomic uint32_t count;
static uint32_t room;

static int moved_high(int descriptor) {
    int high = descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) : -1;
    if (high >= 0) close(descriptor);
    return high >= 0 ? high : descriptor;
}

/* A packet with the ticket, and with a descriptor of what `set` watches: the life. */
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

/* A socket with a packet in its queue, which can be read again and again. The life is in the
 * packet, and open as long as the socket is, or an import has it. */
int nm_export_open(const nm_ticket *ticket) {
    int pair[2], life = eventfd(0, EFD_CLOEXEC);
    if (set < 0) set = moved_high(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.data.u64 = ++last_serial};
    bool watched = set >= 0 && life >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, life, &event) == 0;
    bool paired = watched && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0;
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
    references[count++] = (reference){.serial = last_serial, .physical = physical, .pool = pool};
    if (physical) physical->attachments++;
    if (pool) pool->exports++;
    return true;
}

/* Marks the references of descriptors that are open somewhere. False: there is no telling. */
static bool look(void) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    FILE *listing = fopen(path, "re");
    if (!listing) return false;
    for (uint32_t index = 0; index < count; index++) references[index].open = false;
    while (fgets(line, sizeof line, listing)) {
        const char *data = strncmp(line, "tfd:", 4) == 0 ? strstr(line, "data:") : NULL;
        uint64_t serial = data ? strtoull(data + 5, NULL, 16) : 0;
        for (uint32_t index = 0; index < count; index++) {
            if (references[index].serial == serial) references[index].open = true;
        }
    }
    fclose(listing);
    return true;
}

void nm_exports_settle(void) {
    if (count == 0 || !look()) return;
    uint32_t kept = 0;
    for (uint32_t index = 0; index < count; index++) {
        reference seen = references[index];
        if (seen.open) {
            references[kept++] = seen;
        } else if (seen.physical) {
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
