/* first_contact.c: prim.c's mark of a process, looked at from within: by a thread that comes
   while another one is at it. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/prim.h"

static bool marking, child_seen;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

/* Every system call of prim.c's passes here: the moments at which another thread may run. */
long __wrap_syscall(long number, ...)
{
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long),
         d = va_arg(list, long);
    va_end(list);
    if (marking) {
        marking = false;
        child_seen |= nm_forked();
        marking = true;
    }
    return __real_syscall(number, a, b, c, d);
}

int main(void)
{
    marking = true;
    nm_fork_mark();
    marking = false;
    printf("%s\n", child_seen ? "a child" : "itself");
    return 0;
}
