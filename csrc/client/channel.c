/* channel.c: see channel.h. */
#include "client/channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/messages.h"

/* Room for the end of a UDP packet: env, epoch, client, counter and the MAC. */
#define UDP_RESERVE \
    (sizeof "env=\nepoch=\nclient=\ncounter=\n" + 64 + 20 + 16 + 20 + NM_MAC_LINE_BYTES)

void nm_channel_init(struct nm_channel *channel)
{
    memset(channel, 0, sizeof *channel);
    channel->fd = -1;
}

/* -- opening -- */

static int fault_of(char *fault, size_t size, const char *text)
{
    nm_copy(fault, size, text);
    return NM_CHANNEL_LOST;
}

static int socket_of(struct nm_channel *channel, int family, int type)
{
    int fd = nm_fd_high(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    channel->forbidden = fd < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS);
    if (fd >= 0 && !nm_fd_id(fd, &channel->id)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int connected(struct nm_channel *channel, int fd, const void *address, socklen_t size,
                     char *fault, size_t fault_size)
{
    if (connect(fd, address, size) != 0) {
        int error = errno;
        close(fd);
        return fault_of(fault, fault_size,
                        error == EAGAIN ? NM_MANY_CONNECTIONS
                                        : strerror(error));
    }
    channel->fd = fd;
    return NM_CHANNEL_OK;
}

/* A path that is too long for a socket address is reached by the descriptor of its directory. */
static bool short_path(const char *path, char out[sizeof((struct sockaddr_un *)0)->sun_path],
                       int *directory)
{
    size_t room = sizeof((struct sockaddr_un *)0)->sun_path;
    *directory = -1;
    if (strlen(path) < room) {
        nm_copy(out, room, path);
        return true;
    }
    char parent[NM_ADDRESS_BYTES];
    const char *slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash - path) >= sizeof parent)
        return false;
    nm_copy(parent, (size_t)(slash - path) + 1, path);
    *directory = nm_fd_high(open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC));
    int length = snprintf(out, room, "/proc/self/fd/%d%s", *directory, slash);
    return *directory >= 0 && length > 0 && (size_t)length < room;
}

static int open_unix(struct nm_channel *channel, const struct nm_conf *conf, const char *name,
                     char *fault, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int directory, result;
    if (*name == '/')
        nm_copy(channel->address, sizeof channel->address, name);
    else if (!nm_conf_path(conf, name, channel->address, sizeof channel->address))
        return fault_of(fault, size, NM_LONG_PATH);
    bool fits = short_path(channel->address, address.sun_path, &directory);
    int fd = fits ? socket_of(channel, AF_UNIX, SOCK_SEQPACKET) : -1;
    if (fd >= 0)
        result = connected(channel, fd, &address, sizeof address, fault, size);
    else
        result =
            fault_of(fault, size, fits || directory < 0 ? strerror(errno) : NM_LONG_PATH);
    if (directory >= 0)
        close(directory);
    return result;
}

static int hex_value(char c)
{
    const char *digits = "0123456789abcdef", *found = c != '\0' ? strchr(digits, c | 0x20) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

static bool read_key(struct nm_channel *channel, const struct nm_conf *conf)
{
    char name[256], path[NM_PATH_BYTES], text[2 * NM_KEY_BYTES + 2];
    if (nm_conf_get(conf, "key", name, sizeof name) <= 0 ||
        !nm_conf_path(conf, name, path, sizeof path) ||
        nm_file_read(path, text, sizeof text) < 2 * NM_KEY_BYTES)
        return false;
    for (unsigned i = 0; i < NM_KEY_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        channel->key[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* "127.0.0.1:4711" or "[::1]:4711". Numeric only: looking up a name runs other libraries' code
   in the user's process, for seconds. */
static bool internet_address(const char *text, struct sockaddr_storage *out, socklen_t *size)
{
    char host[64];
    uint64_t port;
    const char *colon = strrchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof host ||
        !nm_number(colon + 1, strlen(colon + 1), &port))
        return false;
    if (port == 0 || port > 65535)
        return false;
    nm_copy(host, (size_t)(colon - text) + 1, text);
    memset(out, 0, sizeof *out);
    if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
        host[strlen(host) - 1] = '\0';
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        *size = sizeof *six;
        return inet_pton(AF_INET6, host + 1, &six->sin6_addr) == 1;
    }
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    *size = sizeof *four;
    return inet_pton(AF_INET, host, &four->sin_addr) == 1;
}

static int open_udp(struct nm_channel *channel, const struct nm_conf *conf, const char *text,
                    char *fault, size_t size)
{
    struct sockaddr_storage address;
    socklen_t address_size;
    snprintf(channel->address, sizeof channel->address, "udp:%s", text);
    if (!internet_address(text, &address, &address_size))
        return fault_of(fault, size, NM_NO_HOST_AND_PORT);
    if (!read_key(channel, conf))
        return fault_of(fault, size, NM_NO_KEY);
    if (nm_conf_get(conf, "env", channel->env, sizeof channel->env) <= 0)
        return fault_of(fault, size, NM_NO_ENV_NAMED);
    if (channel->client[0] == '\0')
        snprintf(channel->client, sizeof channel->client, "%016llx",
                 (unsigned long long)nm_random());
    int fd = socket_of(channel, address.ss_family, SOCK_DGRAM);
    if (fd < 0)
        return fault_of(fault, size, strerror(errno));
    return connected(channel, fd, &address, address_size, fault, size);
}

int nm_channel_open(struct nm_channel *channel, const struct nm_conf *conf, char *fault,
                    size_t size)
{
    char address[NM_PATH_BYTES];
    nm_copy(channel->address, sizeof channel->address, conf->directory);
    if (nm_conf_get(conf, "address", address, sizeof address) <= 0)
        return fault_of(fault, size,
                        conf->fault != 0 ? strerror(conf->fault)
                                         : NM_NO_ADDRESS_NAMED);
    channel->udp = strncmp(address, "udp:", 4) == 0;
    if (channel->udp)
        return open_udp(channel, conf, address + 4, fault, size);
    if (strncmp(address, "unix:", 5) == 0)
        return open_unix(channel, conf, address + 5, fault, size);
    return fault_of(fault, size,
                    NM_STRANGE_ADDRESS);
}

void nm_channel_close(struct nm_channel *channel)
{
    if (channel->fd >= 0 && nm_fd_is(channel->fd, &channel->id))
        close(channel->fd);
    channel->fd = -1;
}

int nm_channel_abandon(struct nm_channel *channel)
{
    int fd = channel->fd;
    channel->fd = -1;
    if (fd < 0 || !nm_fd_is(fd, &channel->id))
        return -1;
    shutdown(fd, SHUT_RDWR); /* packets that were sent are still delivered */
    return fd;
}

/* -- sending -- */

size_t nm_channel_reserve(const struct nm_channel *channel)
{
    return channel->udp ? UDP_RESERVE : 0;
}

static int sign(struct nm_channel *channel, struct nm_build *build)
{
    build->limit = NM_PACKET_BYTES - NM_MAC_LINE_BYTES;
    if (!(build->present >> NM_KEY_env & 1))
        nm_build_text(build, NM_KEY_env, channel->env);
    nm_build_number(build, NM_KEY_epoch, channel->epoch);
    nm_build_text(build, NM_KEY_client, channel->client);
    nm_build_number(build, NM_KEY_counter, ++channel->counter);
    int size = nm_build_end(build);
    return size < 0 ? size
                    : nm_wire_sign(build->packet, (size_t)size, sizeof build->packet, channel->key);
}

static void attach(struct msghdr *message, void *control, size_t control_size, const int *fds,
                   int count)
{
    memset(control, 0, control_size);
    message->msg_control = control;
    message->msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)count);
}

int nm_channel_send(struct nm_channel *channel, struct nm_build *build, const int *fds,
                    int fd_count)
{
    if (channel->fd < 0 || !nm_fd_is(channel->fd, &channel->id)) {
        errno = EBADF;
        return NM_CHANNEL_LOST;
    }
    int size = channel->udp ? sign(channel, build) : nm_build_end(build);
    if (size < 0)
        return NM_CHANNEL_BAD;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * NM_PACKET_FDS)];
    } control;
    struct iovec part = {.iov_base = build->packet, .iov_len = (size_t)size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0 && fd_count <= NM_PACKET_FDS && !channel->udp)
        attach(&message, &control, sizeof control, fds, fd_count);
    if (sendmsg(channel->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
        return NM_CHANNEL_OK;
    /* the manager has the ledger already, and takes no more descriptors */
    if (errno == EPERM && message.msg_controllen > 0)
        return nm_channel_send(channel, build, NULL, 0);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS ||
        errno == ETOOMANYREFS)
        return NM_CHANNEL_LATER;
    /* over UDP the error is of an earlier packet: this one is sent again */
    return channel->udp ? NM_CHANNEL_LATER : NM_CHANNEL_LOST;
}

/* -- receiving -- */

static void take_fds(struct msghdr *message, struct nm_packet *packet)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (packet->fd_count < NM_PACKET_FDS)
                packet->fds[packet->fd_count++] = nm_fd_high(fd);
            else
                close(fd);
        }
    }
}

/* Whether the packet answers one of this client, and is not older than the newest answer so far.
   A replayed packet is older. */
static bool answers(struct nm_channel *channel, const struct nm_message *message)
{
    char client[sizeof channel->client];
    uint64_t counter = nm_message_number(message, NM_KEY_counter, 0);
    if (nm_message_text(message, NM_KEY_client, client, sizeof client) < 0 ||
        strcmp(client, channel->client) != 0)
        return false;
    if (counter < channel->answered || counter > channel->counter || counter == 0)
        return false;
    channel->answered = counter;
    return true;
}

static int decoded(struct nm_channel *channel, struct nm_packet *packet, size_t size)
{
    int length = (int)size;
    if (channel->udp)
        length = nm_wire_verify(packet->bytes, size, channel->key);
    if (length < 0 ||
        nm_wire_decode(&packet->message, packet->bytes, (size_t)length, NM_DOWN) != NM_WIRE_OK)
        return NM_CHANNEL_BAD;
    return channel->udp && !answers(channel, &packet->message) ? NM_CHANNEL_BAD : NM_CHANNEL_OK;
}

int nm_channel_receive(struct nm_channel *channel, struct nm_packet *packet)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * (NM_PACKET_FDS + 2))];
    } control;
    struct iovec part = {.iov_base = packet->bytes, .iov_len = sizeof packet->bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    packet->fd_count = 0;
    packet->fds_lost = false;
    if (channel->fd < 0 || !nm_fd_is(channel->fd, &channel->id)) {
        errno = EBADF;
        return NM_CHANNEL_LOST;
    }
    ssize_t size = recvmsg(channel->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return NM_CHANNEL_LATER;
    if (size < 0)
        return channel->udp ? NM_CHANNEL_BAD
                            : NM_CHANNEL_LOST; /* ICMP reports an earlier packet */
    if (size == 0 && !channel->udp) {
        errno = ECONNRESET;
        return NM_CHANNEL_LOST;
    }
    take_fds(&message, packet);
    packet->fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
    int result = decoded(channel, packet, (size_t)size);
    while (result != NM_CHANNEL_OK && packet->fd_count > 0)
        close(packet->fds[--packet->fd_count]);
    return result;
}
