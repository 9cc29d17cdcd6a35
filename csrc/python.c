/* python.c: see python.h. */
#include "python.h"

#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "linker.h"
#include "prim.h"

static void *find(const char *name)
{
    return nm_linker()->dlsym(RTLD_DEFAULT, name);
}

bool nm_python_thread(void)
{
    void *(*thread_state)(void) = (void *(*)(void))find("PyGILState_GetThisThreadState");
    return thread_state != NULL && thread_state() != NULL;
}

static bool is_main_thread(void)
{
    return (uint32_t)syscall(SYS_gettid) == nm_pid();
}

bool nm_python_interrupted(void)
{
    int (*ensure)(void) = (int (*)(void))find("PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))find("PyGILState_Release");
    int (*check_signals)(void) = (int (*)(void))find("PyErr_CheckSignals");
    void (*clear)(void) = (void (*)(void))find("PyErr_Clear");
    void (*set_interrupt)(void) = (void (*)(void))find("PyErr_SetInterrupt");
    if (!is_main_thread() || !nm_python_thread() || ensure == NULL || release == NULL || check_signals == NULL || clear == NULL ||
        set_interrupt == NULL)
        return false;
    int state = ensure();
    bool raised = check_signals() == -1;
    if (raised) {
        clear();
        set_interrupt();
    }
    release(state);
    return raised;
}
