/* shim.c: the start of a process, and its first use of CUDA.
 *
 * Knows: names of Python interpreters, the folders of the payload, the result of cuInit in each
 * state of the client. Must not know: the wire, the ledger, how symbols are hooked.
 *
 * The library is preloaded into every process of an environment. At the start it notes the stderr
 * and reads one symbolic link, and does no more unless that names Python.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "account/blocks.h"
#include "account/charge.h"
#include "account/pending.h"
#include "account/suspendable.h"
#include "client/client.h"
#include "client/messages.h"
#include "client/request.h"
#include "hooks/interpose.h"
#include "hooks/linker.h"
#include "launch/launch.h"
#include "memory/contexts.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "memory/virtual.h"
#include "shim/python.h"

enum { PATH_BYTES = 4096 };

/* -- a process starts -- */

/* python, python3, python3.11, python3.13t, python3.11-dbg, pypy3.10: a stem, a version, a short
   build mark. */
static bool is_python(const char *program)
{
    static const char *const stems[] = {"python", "pypy"};
    static const char *const marks[] = {"", "t", "d", "m", "u", "td", "dm", "mu", "-dbg", "w"};
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        size_t stem = strlen(stems[i]);
        if (strncmp(program, stems[i], stem) != 0)
            continue;
        const char *mark = program + stem + strspn(program + stem, "0123456789.");
        for (size_t j = 0; j < sizeof marks / sizeof *marks; j++)
            if (strcmp(mark, marks[j]) == 0)
                return true;
    }
    return false;
}

static bool runs_python(void)
{
    char path[PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return false;
    path[length] = '\0';
    const char *slash = strrchr(path, '/');
    return is_python(slash != NULL ? slash + 1 : path);
}

/* The last "/client_plugin/_lib/" of a path, or NULL. */
static char *payload_end(char *path)
{
    char *last = NULL;
    for (char *at = path; (at = strstr(at, "/client_plugin/_lib/")) != NULL; at++)
        last = at;
    return last;
}

/* X/sitecustomize, if this library is in or below X/client_plugin/_lib. False: it is elsewhere,
   without the hook. */
static bool hook_directory(char *out, size_t size)
{
    Dl_info self = {0};
    char path[PATH_BYTES], file[PATH_BYTES];
    if (nm_linker()->dladdr((const void *)hook_directory, &self) == 0 || self.dli_fname == NULL)
        return false;
    size_t length = 0;
    if (self.dli_fname[0] != '/') { /* LD_PRELOAD may be relative */
        if (getcwd(path, sizeof path - 1) == NULL)
            return false;
        length = strlen(path);
        path[length++] = '/';
    }
    if (nm_copy(path + length, sizeof path - length, self.dli_fname) < strlen(self.dli_fname))
        return false;
    char *end = payload_end(path);
    if (end == NULL)
        return false;
    *end = '\0';
    if ((size_t)snprintf(file, sizeof file, "%s/sitecustomize/sitecustomize.py", path) >=
            sizeof file ||
        access(file, R_OK) != 0)
        return false;
    return (size_t)snprintf(out, size, "%s/sitecustomize", path) < size;
}

/* The length of the first entry of a list, without its ':'. */
static size_t entry_length(const char *list)
{
    return strcspn(list, ":");
}

static bool is_entry(const char *list, const char *directory)
{
    size_t length = entry_length(list);
    return length == strlen(directory) && strncmp(list, directory, length) == 0;
}

/* First on PYTHONPATH, once: a launcher that puts a sitecustomize of its own in front of the hook's
   is run by the hook's. */
static void show_hook_to_python(void)
{
    char directory[PATH_BYTES];
    const char *path = nm_env_get("PYTHONPATH");
    if (!hook_directory(directory, sizeof directory) || (path != NULL && is_entry(path, directory)))
        return;
    bool bare = path == NULL || *path == '\0';
    size_t used = strlen(directory);
    char *value = malloc(used + (bare ? 0 : strlen(path) + 1) + 1);
    if (value == NULL)
        return;
    memcpy(value, directory, used);
    for (const char *at = bare ? NULL : path; at != NULL;) {
        size_t length = entry_length(at);
        if (!is_entry(at, directory)) {
            value[used++] = ':';
            memcpy(value + used, at, length);
            used += length;
        }
        at = at[length] == ':' ? at + length + 1 : NULL;
    }
    value[used] = '\0';
    nm_env_publish("PYTHONPATH", value);
    free(value);
}

__attribute__((constructor)) static void start(void)
{
    nm_say_prepare();
    if (!nm_is_secure() && runs_python() && nodemgr_preloaded() && nm_is_managed())
        show_hook_to_python();
}

/* -- the first use of CUDA -- */

static void forget_in_child(void)
{
    nm_block_break_locks(); /* the next reads the table */
    nm_charge_forget();
    nm_virtual_forget();
    nm_block_forget();
    nm_pending_forget();
    nm_pools_forget();
    nm_graphs_forget();
    nm_contexts_forget();
    nm_suspendable_forget();
    nm_launch_forget();
}

static void watch_forks(void)
{
    static _Atomic bool watching;
    if (!atomic_exchange(&watching, true))
        pthread_atfork(NULL, NULL, forget_in_child);
}

/* The variables that a grant sets, for os.environ (client_plugin/lease.py has the same names). */
static const char *const granted_names[] = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES",
                                            "NODEMGR_VISIBLE", "NODEMGR_TASK"};

/* Python waits better: its line updates itself, and Ctrl-C ends the wait. Its callback needs the
   GIL. */
static int acquire(void)
{
    char line[8];
    int state = nodemgr_state(line, sizeof line);
    if (state == NODEMGR_HELD)
        return state;
    int (*waiter)(void) = nm_client_waiter();
    if (waiter != NULL && nm_python_thread())
        return waiter();
    state = nm_client_acquire_blocking(nm_python_interrupted);
    if (state == NODEMGR_HELD || state == NODEMGR_CPU)
        nm_python_follow(granted_names, sizeof granted_names / sizeof *granted_names);
    return state;
}

/* The value of `visible` in the text of nodemgr_lease. */
static bool granted_visible(char out[NM_VISIBLE_BYTES])
{
    char lease[4 * NM_VISIBLE_BYTES];
    if (nodemgr_lease(lease, sizeof lease) < 0)
        return false;
    const char *value = strstr(lease, "\nvisible=");
    if (value == NULL)
        return false;
    value += strlen("\nvisible=");
    size_t length = strcspn(value, "\n");
    if (length == 0 || length >= NM_VISIBLE_BYTES)
        return false;
    memcpy(out, value, length);
    out[length] = '\0';
    return true;
}

/* A program may set CUDA_VISIBLE_DEVICES between the grant and its first use of CUDA: it chooses
 * from its grant. If it has unset the variable, it gets the whole grant, and not all GPUs of the
 * node. */
static void heed_late_choice(void)
{
    char granted[NM_VISIBLE_BYTES], chosen[NM_VISIBLE_BYTES];
    const char *cuda = nm_env_get("CUDA_VISIBLE_DEVICES"), *mark = nm_env_get("NODEMGR_VISIBLE");
    struct nm_request request;
    struct nm_variables variables = {.cuda_visible = cuda,
                                     .nodemgr_visible = mark != NULL ? mark : granted};
    if ((cuda != NULL && mark != NULL && strcmp(cuda, mark) == 0) || !granted_visible(granted))
        return;
    nm_request_read(&request, &variables, -1);
    if (request.cpu)
        return; /* no device: the driver reads the variable itself */
    nm_request_visible(&request, granted, chosen);
    nm_env_publish("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    nm_env_publish("CUDA_VISIBLE_DEVICES", chosen);
    nm_env_publish("NODEMGR_VISIBLE", chosen);
}

static bool lacks_descriptors(void)
{
    int fd = open("/", O_PATH | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd < 0 && (errno == EMFILE || errno == ENFILE);
}

/* The connection and the ledger take descriptors, which the driver may lack then. A driver that has
   started before refuses for another reason, and its memory is in use. */
static int started(int result)
{
    static _Atomic bool has_started;
    if (result == NM_CUDA_SUCCESS)
        atomic_store(&has_started, true);
    if (atomic_load(&has_started) || !lacks_descriptors())
        return result;
    nodemgr_release();
    nm_say(NM_NO_DESCRIPTORS_FOR_DRIVER, result);
    return result;
}

/* Only a process with a lease reaches the driver. Without one it finds no device, and may try
   again: the driver was not initialised. */
int nm_hook_cuInit(unsigned flags)
{
    /* a raw clone: no handler ran, and locks may be held by the parent's other threads */
    if (nm_forked())
        forget_in_child();
    if (nm_original(NM_SYMBOL_cuInit) == NULL || !nm_is_managed())
        return nm_real_cuInit(flags);
    int state = acquire();
    if (state == NODEMGR_UNMANAGED)
        return nm_real_cuInit(flags);
    if (state != NODEMGR_HELD)
        return NM_CUDA_ERROR_NO_DEVICE;
    heed_late_choice();
    static const struct nm_launch_host python = {nm_python_ends_wait, nm_python_leave,
                                                 nm_python_enter_again};
    nm_launch_set_host(&python);
    watch_forks();
    return started(nm_real_cuInit(flags));
}
