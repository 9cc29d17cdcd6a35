"""Programs that lack descriptors or system calls: a line, the grant goes back, and the call fails.

A program that holds on to its GPUs is a test that hangs: the setting is no_manager=wait.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.shim.world import NO_DEVICE, World, compiled

PROGRAM = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <errno.h>
#include <unistd.h>
static int deny(int number)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {4, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) |
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
static void leave(int left)
{
    struct rlimit limit = {64, 64};
    int fd, last = -1;
    setrlimit(RLIMIT_NOFILE, &limit);
    while ((fd = open("/dev/null", O_RDONLY)) >= 0)
        last = fd;
    while (left-- > 0)
        close(last--);
}
int main(int count, char **words)
{
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
    if (!strcmp(words[1], "socket") && deny(SYS_socket))
        return 2;
    if (!strcmp(words[1], "fcntl") && deny(SYS_fcntl))
        return 2;
    if (words[1][0] >= '0' && words[1][0] <= '9')
        leave(atoi(words[1]));
    if (!strcmp(words[1], "later")) {
        printf("%d\n", init(0));
        leave(0);
        printf("%d\n", init(1)); /* flags that the driver refuses */
        return 0;
    }
    printf("%d\n", init(0));
    return 0;
}
"""
NO_ROOM = (
    "GPUs are granted, but this process cannot take them: no free file descriptors for the memory"
    " ledger (ulimit -n); start the program again with room for it"
)
LINES = {
    "1": NO_ROOM,
    "2": NO_ROOM,
    "3": "CUDA did not start (error 100), and this process has no free file descriptors: its GPUs"
    " are given back; raise the limit (ulimit -n), or close files before",
    "fcntl": "GPUs are granted, but this process cannot take them: the memory ledger cannot be"
    " mapped; start the program again with room for it",
    "socket": "this process cannot ask for GPUs: it may open no socket (Operation not permitted);"
    " allow it the system call (seccomp, a sandbox), or use CUDA before it is forbidden",
}


@pytest.mark.parametrize("lacks", LINES)
def test_the_grant_goes_back_and_the_call_fails_with_its_line(
    make_world: Callable[..., World], lacks: str
) -> None:
    env = make_world(settings={"no_manager": "wait"})
    ended = env.run(compiled(PROGRAM), lacks)
    assert ended.stdout == f"{NO_DEVICE}\n"
    assert ended.stderr.splitlines()[-1] == f"nodemgr: {LINES[lacks]}"
    env.manager.await_no_seats()
    asked = env.manager.verbs().count("ACQUIRE")
    assert ("RELEASE" in env.manager.verbs()) == (asked > 0)
    assert asked == {"socket": 0, "3": 1}.get(lacks, 3)


def test_four_free_descriptors_suffice(env: World) -> None:
    ended = env.run(compiled(PROGRAM), "4")
    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_a_refusal_after_the_start_takes_no_gpus(env: World) -> None:
    """The program has memory, and all of its descriptors are in use."""
    ended = env.run(compiled(PROGRAM), "later")
    assert (ended.stdout, ended.stderr) == ("0\n1\n", "")
