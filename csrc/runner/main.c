/*
 * main.c: nodemgr-runner's way to be started, by a verb of `nodemgr` in a container.
 *
 *   nodemgr-runner ENV_DIR   goes on by itself when the manager has taken it; else one line on
 *                            stderr, and 1
 *   nodemgr-runner           nothing; 0: programs of this kind run here
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner/runner.h"

/* No terminal, no directory and no descriptor of whoever started us is held on to. */
static void detach(void)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
    if (chdir("/") != 0)
        return; /* the one that we are in, then */
}

/* In the child: how it went is said by a line at `told`, empty if well. */
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
    if (setenv("NODEMGR_ENV_DIR", argv[1], 1) != 0 || pipe2(ends, O_CLOEXEC) != 0) {
        perror("nodemgr-runner");
        return 1;
    }
    const pid_t child = fork();
    if (child == 0)
        return serve(ends[1]);
    close(ends[1]);
    if (child < 0) {
        perror("nodemgr-runner");
        return 1;
    }
    return listen_to(ends[0]);
}
