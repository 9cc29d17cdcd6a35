/* contact.c: a connection to the manager, and packets on it; see runner.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/prim.h"
#include "conf/conf.h"
#include "jobs/messages.h"
#include "runner/runner.h"

/* The path of the socket; false: `fault`. */
static bool find(char *path, size_t size, char fault[NM_FAULT_BYTES])
{
    static struct nm_conf conf;
    char address[NM_PATH_BYTES];
    const char *directory = nm_env_get("NODEMGR_ENV_DIR");
    if (!nm_conf_read(&conf))
        snprintf(fault, NM_FAULT_BYTES, NM_NO_ENV_DIRECTORY, directory != NULL ? directory : "-");
    else if (nm_conf_get(&conf, "address", address, sizeof address) <= 0)
        snprintf(fault, NM_FAULT_BYTES, NM_ENV_WITHOUT_ADDRESS, conf.directory);
    else if (strncmp(address, "unix:", 5) != 0)
        snprintf(fault, NM_FAULT_BYTES, NM_NO_UNIX_SOCKET, conf.directory);
    else if (address[5] == '/' ? nm_copy(path, size, address + 5) < strlen(address + 5)
                               : !nm_conf_path(&conf, address + 5, path, size))
        snprintf(fault, NM_FAULT_BYTES, NM_SOCKET_PATH_TOO_LONG, conf.directory);
    else
        return true;
    return false;
}

int nm_contact_open(char fault[NM_FAULT_BYTES])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;
    if (!find(address.sun_path, sizeof address.sun_path, fault))
        return -1;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    snprintf(fault, NM_FAULT_BYTES, NM_SOCKET_UNREACHABLE, address.sun_path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

bool nm_contact_send(int fd, struct nm_build *build)
{
    const int size = nm_build_end(build);
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    while (size > 0) {
        if (send(fd, build->packet, (size_t)size, MSG_NOSIGNAL) == size)
            return true;
        if ((errno != EAGAIN && errno != EINTR) ||
            (errno == EAGAIN && poll(&room, 1, NM_ANSWER_MS) == 0))
            return false;
    }
    return false;
}

/* All descriptors that came, or none: of a part the reader could not know which they are. */
static void take_files(struct msghdr *header, struct nm_letter *letter)
{
    for (struct cmsghdr *each = CMSG_FIRSTHDR(header); each != NULL;
         each = CMSG_NXTHDR(header, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t index = 0; index < count; index++) {
            int fd;
            memcpy(&fd, CMSG_DATA(each) + index * sizeof fd, sizeof fd);
            if (letter->fd_count < NM_LETTER_FDS)
                letter->fds[letter->fd_count++] = fd;
            else
                close(fd);
        }
    }
    if ((header->msg_flags & MSG_CTRUNC) != 0)
        nm_letter_close(letter);
}

bool nm_contact_receive(int fd, int timeout_ms, struct nm_letter *letter)
{
    for (;;) {
        char room[CMSG_SPACE(NM_LETTER_FDS * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
        struct iovec part = {.iov_base = letter->bytes, .iov_len = sizeof letter->bytes};
        struct msghdr header = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        ssize_t size;
        letter->fd_count = 0;
        if (poll(&ready, 1, timeout_ms) == 0) {
            errno = EAGAIN;
            return false;
        }
        size = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
        if (size < 0 && (errno == EINTR || (errno == EAGAIN && timeout_ms != 0)))
            continue;
        if (size <= 0) {
            errno = size == 0 ? ECONNRESET : errno;
            return false;
        }
        take_files(&header, letter);
        if (nm_wire_decode(&letter->message, letter->bytes, (size_t)size, NM_DOWN) == NM_WIRE_OK)
            return true;
        nm_letter_close(letter);
    }
}

void nm_letter_close(struct nm_letter *letter)
{
    while (letter->fd_count > 0)
        close(letter->fds[--letter->fd_count]);
}

void nm_build_named(struct nm_build *build, enum nm_verb verb, const struct nm_named *named)
{
    nm_build_begin(build, verb, 0);
    nm_build_text(build, NM_KEY_job, named->job);
    nm_build_number(build, NM_KEY_attempt, named->attempt);
}

void nm_contact_fail(int fd, const struct nm_named *named, const char *why)
{
    struct nm_build build;
    nm_build_named(&build, NM_VERB_FAILED, named);
    nm_build_text_cut(&build, NM_KEY_reason, why, NM_FAULT_BYTES);
    nm_contact_send(fd, &build);
}
