/* main.c: nodemgr-runner, started by a verb of `nodemgr` in a container.
 *
 *   nodemgr-runner ENV_DIR   goes on in the background once the manager has accepted it; else one
 *                            line on stderr, and 1
 *   nodemgr-runner           exits with 0: programs of this kind run here
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/messages.h"
#include "runner/runner.h"

/* Keeps no terminal, directory or descriptor of its starter. */
static void detach(void)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
    if (chdir("/") != 0)
        return; /* in the present one, then */
}

static int not_started(void)
{
    fprintf(stderr, NM_RUNNER_NOT_STARTED "\n", strerror(errno));
    return 1;
}

/* In the child. It writes one line to `told`: the fault, or an empty line. */
static int serve(int told)
{
    char fault[NM_FAULT_BYTES] = "";
    setsid();
    nm_close_others(told, false);
    nm_keep_rights_of_container();
    const bool begun = nm_runner_begin(fault);
    if (begun)
        fault[0] = 0;
    if (write(told, fault, strlen(fault)) < 0)
        return 1;
    detach();
    close(told);
    return begun ? nm_runner_serve() : 1;
}

static int listen_to(int told)
{
    char line[NM_FAULT_BYTES] = "";
    size_t size = 0;
    ssize_t count;
    while (size < sizeof line - 1 && (count = read(told, line + size, sizeof line - 1 - size)) > 0)
        size += (size_t)count;
    if (size > 0)
        fprintf(stderr, "%s\n", line);
    return size > 0;
}

int main(int argc, char *argv[])
{
    int ends[2];
    nm_keep_title(argc, argv);
    if (argc != 2)
        return argc > 2;
    if (setenv("NODEMGR_ENV_DIR", argv[1], 1) != 0 || pipe2(ends, O_CLOEXEC) != 0)
        return not_started();
    const pid_t child = fork();
    if (child == 0)
        return serve(ends[1]);
    close(ends[1]);
    return child < 0 ? not_started() : listen_to(ends[0]);
}
