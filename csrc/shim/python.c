/* python.c: see python.h. */
#include "shim/python.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/prim.h"
#include "hooks/linker.h"

#define UNANSWERED_NS UINT64_C(500000000)
#define INTERPRETER_STACK_BYTES (8u << 20) /* as Linux gives a thread by default */

static void *find(const char *name)
{
    return nm_linker()->dlsym(RTLD_DEFAULT, name);
}

static bool is_main_thread(void)
{
    return (uint32_t)syscall(SYS_gettid) == nm_pid();
}

/* PyPy's own threads cannot be told from others: its main thread alone is known, where no extension
   of C holds the GIL. */
bool nm_python_thread(void)
{
    void *(*thread_state)(void) = (void *(*)(void))find("PyGILState_GetThisThreadState");
    int (*holds)(void) = (int (*)(void))find("PyPyGILState_Check");
    return thread_state != NULL ? thread_state() != NULL
                                : holds != NULL && is_main_thread() && holds() != 1;
}

static void (*_Atomic raiser)(void *exception);

void nodemgr_set_raiser(void (*wanted)(void *exception))
{
    atomic_store(&raiser, wanted);
}

/* The exception that is set goes to the raiser. False: there is none, and it is still set. */
static bool pass_on(void)
{
    void (*fetch)(void **, void **, void **) = (void (*)(void **, void **, void **))find("PyErr_Fetch");
    void (*normalize)(void **, void **, void **) =
        (void (*)(void **, void **, void **))find("PyErr_NormalizeException");
    void (*unref)(void *) = (void (*)(void *))find("Py_DecRef");
    void (*receive)(void *) = atomic_load(&raiser), *type, *value, *traceback;
    if (receive == NULL || fetch == NULL || normalize == NULL || unref == NULL)
        return false;
    fetch(&type, &value, &traceback);
    normalize(&type, &value, &traceback);
    receive(value);
    unref(type);
    unref(value);
    unref(traceback);
    return true;
}

static int (*_Atomic checker)(void);

void nodemgr_set_checker(int (*wanted)(void))
{
    atomic_store(&checker, wanted);
}

bool nm_python_interrupted(void)
{
    int (*check)(void) = atomic_load(&checker);
    if (check != NULL)
        return is_main_thread() && nm_python_thread() && check() != 0;
    int (*ensure)(void) = (int (*)(void))find("PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))find("PyGILState_Release");
    int (*check_signals)(void) = (int (*)(void))find("PyErr_CheckSignals");
    void (*clear)(void) = (void (*)(void))find("PyErr_Clear");
    void (*set_interrupt)(void) = (void (*)(void))find("PyErr_SetInterrupt");
    if (!is_main_thread() || !nm_python_thread() || ensure == NULL || release == NULL ||
        check_signals == NULL || clear == NULL || set_interrupt == NULL)
        return false;
    int state = ensure();
    bool raised = check_signals() == -1;
    if (raised && !pass_on()) {
        clear();
        set_interrupt();
    }
    release(state);
    return raised;
}

/* Objects of Python and its functions on them. */
struct python {
    int (*ensure)(void);
    void (*release)(int);
    void *(*occurred)(void);
    void (*clear)(void);
    void *(*modules)(void); /* borrowed, as is the next */
    void *(*item)(void *dictionary, const char *name);
    void *(*attribute)(void *object, const char *name);
    void *(*call)(void *object, const char *name, const char *format, ...);
    void *(*bytes)(const char *text);
    int (*set)(void *dictionary, void *key, void *value);
    void (*unref)(void *object);
};

static bool find_python(struct python *python)
{
    static const char *const names[] = {
        "PyGILState_Ensure",      "PyGILState_Release",
        "PyErr_Occurred",         "PyErr_Clear",
        "PyImport_GetModuleDict", "PyDict_GetItemString",
        "PyObject_GetAttrString", "PyObject_CallMethod",
        "PyBytes_FromString",     "PyDict_SetItem",
        "Py_DecRef",
    };
    void *found[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((found[i] = find(names[i])) == NULL)
            return false;
    _Static_assert(sizeof found == sizeof *python, "one name for each function");
    memcpy(python, found, sizeof found);
    return true;
}

/* -- Ctrl-C while another thread waits, and the main thread waits for it in C -- */

static struct sigaction python_handler;
static _Atomic uint32_t interrupts = 1, questions, answered;

static void note_interrupt(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    atomic_fetch_add(&interrupts, 1);
    errno = saved_errno;
    if ((python_handler.sa_flags & SA_SIGINFO) != 0)
        python_handler.sa_sigaction(number, info, context);
    else
        python_handler.sa_handler(number);
}

/* Puts a count before Python's handler, where it is not there. It stays: Python sees its own table
   of handlers alone, and replaces this one with the next that it sets. */
static void count_interrupts(void)
{
    struct sigaction now;
    if (sigaction(SIGINT, NULL, &now) != 0 || now.sa_handler == SIG_DFL ||
        now.sa_handler == SIG_IGN || now.sa_sigaction == note_interrupt)
        return;
    python_handler = now;
    now.sa_sigaction = note_interrupt;
    now.sa_flags |= SA_SIGINFO;
    sigaction(SIGINT, &now, NULL);
}

/* A pending call of Python: the main thread runs, and has handled its signals. */
static int answer(void *question)
{
    uint32_t number = (uint32_t)(uintptr_t)question, before = atomic_load(&answered);
    while (before < number && !atomic_compare_exchange_weak(&answered, &before, number))
        ;
    return 0;
}

/* Whether Ctrl-C raises KeyboardInterrupt: a handler of the program may mean something else. */
static bool is_default_handler(void)
{
    struct python python;
    if (!find_python(&python))
        return false;
    int state = python.ensure();
    void *modules = python.modules();
    void *module = modules != NULL ? python.item(modules, "_signal") : NULL;
    void *usual = module != NULL ? python.attribute(module, "default_int_handler") : NULL;
    void *present = module != NULL ? python.call(module, "getsignal", "i", SIGINT) : NULL;
    bool same = usual != NULL && usual == present;
    if (usual != NULL)
        python.unref(usual);
    if (present != NULL)
        python.unref(present);
    python.clear();
    python.release(state);
    return same;
}

/* Python's handlers run in the main thread alone. Where that does not answer within UNANSWERED_NS
   of Ctrl-C, it waits in C, as that of PyTorch does for a backward pass: the wait of this thread
   ends, and KeyboardInterrupt is raised once the main thread is back. */
static bool interrupted_beside_main(struct nm_interrupt *interrupt)
{
    int (*add)(int (*)(void *), void *) = (int (*)(int (*)(void *), void *))find("Py_AddPendingCall");
    if (add == NULL || !nm_python_thread())
        return false;
    count_interrupts();
    uint32_t count = atomic_load(&interrupts);
    if (interrupt->seen == 0)
        interrupt->seen = count;
    if (interrupt->seen == count)
        return false;
    if (interrupt->asked == 0) {
        uint32_t question = atomic_fetch_add(&questions, 1) + 1;
        if (add(answer, (void *)(uintptr_t)question) == 0) {
            interrupt->asked = question;
            interrupt->asked_ns = nm_now_ns();
        }
        return false;
    }
    if (atomic_load(&answered) >= interrupt->asked) {
        *interrupt = (struct nm_interrupt){.seen = count};
        return false;
    }
    return nm_now_ns() - interrupt->asked_ns > UNANSWERED_NS && is_default_handler();
}

bool nm_python_ends_wait(struct nm_interrupt *interrupt)
{
    return is_main_thread() ? nm_python_interrupted() : interrupted_beside_main(interrupt);
}
/* os.environ keeps its values in a dictionary of bytes; a write to that is no putenv. New
   reference, or NULL. */
static void *environ_data(const struct python *python)
{
    void *modules = python->modules(), *os = modules != NULL ? python->item(modules, "os") : NULL;
    void *environ_object = os != NULL ? python->attribute(os, "environ") : NULL;
    void *data = environ_object != NULL ? python->attribute(environ_object, "_data") : NULL;
    if (environ_object != NULL)
        python->unref(environ_object);
    return data;
}

static void put(const struct python *python, void *data, const char *name, const char *value)
{
    void *key = python->bytes(name), *text = python->bytes(value);
    if (key != NULL && text != NULL)
        python->set(data, key, text); /* refused if it is no dictionary */
    if (key != NULL)
        python->unref(key);
    if (text != NULL)
        python->unref(text);
}

static void follow(const struct python *python, const char *const *names, size_t count)
{
    /* an exception that is set belongs to the program: do nothing beside it */
    if (python->occurred() != NULL)
        return;
    void *data = environ_data(python);
    for (size_t i = 0; i < count && data != NULL; i++)
        if (nm_env_get(names[i]) != NULL)
            put(python, data, names[i], nm_env_get(names[i]));
    if (data != NULL)
        python->unref(data);
    python->clear();
}

static const char *const *_Atomic pending_names;
static _Atomic size_t pending_count;

/* A pending call of Python: in the main thread, with the GIL. */
static int follow_later(void *unused)
{
    struct python python;
    (void)unused;
    if (find_python(&python))
        follow(&python, atomic_load(&pending_names), atomic_load(&pending_count));
    return 0;
}

/* PyPy has no pending calls, and a thread may hold its GIL while it waits for the thread that got
   the grant: a thread for which nothing waits does it. */
static void *check_there(void *unused)
{
    struct nm_thread thread = {0};
    (void)unused;
    atomic_load(&checker)();
    nm_thread_look(&thread);
    if (!nm_thread_leave())
        nm_thread_end(&thread);
    return NULL;
}

void nm_python_follow(const char *const *names, size_t count)
{
    struct python python;
    if (atomic_load(&checker) != NULL)
        nm_thread_start(check_there, INTERPRETER_STACK_BYTES); /* else the C environment has it */
    int (*is_initialized)(void) = (int (*)(void))find("Py_IsInitialized");
    int (*add)(int (*)(void *), void *) = (int (*)(int (*)(void *), void *))find("Py_AddPendingCall");
    if (is_initialized == NULL || !is_initialized() || !find_python(&python))
        return;
    if (is_main_thread() && nm_python_thread()) {
        int state = python.ensure();
        follow(&python, names, count);
        python.release(state);
    } else if (add != NULL) { /* the GIL may be held by a thread that waits for this one */
        atomic_store(&pending_count, count);
        atomic_store(&pending_names, names);
        add(follow_later, NULL); /* refused where 32 calls wait: the C environment has the value */
    }
}

void *nm_python_leave(void)
{
    int (*holds)(void) = (int (*)(void))find("PyGILState_Check");
    void *(*leave)(void) = (void *(*)(void))find("PyEval_SaveThread");
    if (holds == NULL || leave == NULL || find("PyEval_RestoreThread") == NULL ||
        !nm_python_thread() || holds() != 1)
        return NULL;
    return leave();
}

void nm_python_enter_again(void *left)
{
    void (*enter)(void *) = (void (*)(void *))find("PyEval_RestoreThread");
    if (enter != NULL)
        enter(left);
}
