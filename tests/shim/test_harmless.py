"""Harm that the shim must not do to a program: with a driver, without, with other guests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client_c.compiled import compile_c
from tests.hook.conftest import interpreters
from tests.shim.world import LIBRARY, LINKED_WITH_DRIVER, PROGRAMS, World, compiled, copy_library
from tests.support.limits import WAIT_LIMIT_S

LOOKUPS = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void tell(const char *what, void *found)
{
    const char *error = dlerror();
    printf("%s %s %s\n", what, found != NULL ? "found" : "NULL", error != NULL ? "error" : "-");
}

int main(int argc, char **argv)
{
    void *handle = argc > 1 ? dlopen(argv[1], RTLD_NOW | (argc > 2 ? RTLD_GLOBAL : RTLD_LOCAL))
        : NULL;
    void *self = dlopen(NULL, RTLD_NOW), *maths = dlopen("libm.so.6", RTLD_NOW);
    tell("default", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    tell("next", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
    tell("program", dlsym(self, "cuMemAlloc_v2"));
    tell("stranger", dlsym(maths, "cuMemAlloc_v2"));
    tell("versioned", dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "NONE_1.0"));
    tell("prefix", dlsym(maths, "cubic"));
    tell("other", dlsym(maths, "cos"));
    tell("other-versioned", dlvsym(maths, "cos", "GLIBC_2.2.5"));
    tell("other-missing", dlsym(RTLD_DEFAULT, "no_such_thing"));
    tell("handle", handle != NULL ? dlsym(handle, "cuMemAlloc_v2") : NULL);
    return 0;
}
"""


def outcome(text: str) -> dict[str, str]:
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in text.splitlines()}


@pytest.mark.parametrize("managed", [True, False], ids=["managed", "unmanaged"])
@pytest.mark.parametrize(
    "arguments",
    [[], ["libcuda.so.1"], ["libcuda.so.1", "global"]],
    ids=["no driver", "local", "global"],
)
def test_lookups_answer_as_without_the_shim(
    arguments: list[str], managed: bool, env: World
) -> None:
    """Except that a loaded driver is found: its symbols are ours to answer for."""
    bare = outcome(env.run(compiled(LOOKUPS), *arguments, shim=False).stdout)
    with_shim = outcome(env.run(compiled(LOOKUPS), *arguments, managed=managed).stdout)
    if arguments == ["libcuda.so.1"]:
        for place in ("default", "next", "program"):
            assert bare.pop(place) == "NULL error"
            assert with_shim.pop(place) == "found -"
    assert with_shim == bare


def test_the_program_is_linked_with_the_driver(env: World) -> None:
    program = compiled(LOOKUPS, *LINKED_WITH_DRIVER)
    assert env.run(program).stdout == env.run(program, shim=False).stdout


WRAPPER = r"""
#include <dlfcn.h>
int calls;
int cuMemAlloc_v2(unsigned long *address, unsigned long bytes)
{
    int (*next)(unsigned long *, unsigned long) = (int (*)(unsigned long *,
        unsigned long))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    calls++;
    return next != 0 ? next(address, bytes) : -1;
}
int cubic(int x) { return x * x * x; }
"""

ASKS_WRAPPER = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    void *handle = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
    void *found = dlsym(handle, "cuMemAlloc_v2"), *cubic = dlsym(handle, "cubic");
    Dl_info info = {0};
    int known = found != NULL && dladdr(found, &info);
    printf("%s %d\n", known ? info.dli_fname : "?", cubic != NULL ? ((int (*)(int))cubic)(3) : 0);
    return 0;
}
"""


def shared(source: str, directory: Path, name: str) -> Path:
    output = directory / name
    command = ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-x", "c", "-", "-o", str(output), "-ldl"]
    subprocess.run(command, input=source, text=True, check=True)
    return output


def test_somebodys_own_symbol_of_that_name_stays_his(env: World) -> None:
    library = shared(WRAPPER, env.directory, "libwrapper.so")
    asks = compiled(ASKS_WRAPPER)
    assert env.run(asks, library).stdout == f"{library} 27\n"


FIRST = r"""
#include <dlfcn.h>
#include <string.h>
const char *who(void) { return "first"; }
const char *next_who(void)
{
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "who");
    return next != 0 ? next() : "nobody";
}
const char *next_who_versioned(void)
{
    const char *(*next)(void) = (const char *(*)(void))dlvsym(RTLD_NEXT, "who", "NONE_1.0");
    return next != 0 ? next() : "nobody";
}
"""

CHAIN = r"""
#include <stdio.h>
const char *next_who(void), *next_who_versioned(void), *who(void);
int main(void)
{
    printf("%s %s %s\n", who(), next_who(), next_who_versioned());
    return 0;
}
"""


def test_next_is_relative_to_its_caller(env: World) -> None:
    """A wrapped dlsym that calls instead of jumping would answer "first" again, for ever."""
    first = shared(FIRST, env.directory, "libfirst.so")
    second = shared('const char *who(void) { return "second"; }', env.directory, "libsecond.so")
    program = compiled(CHAIN, f"-Wl,--no-as-needed,{first},{second}", f"-Wl,-rpath,{env.directory}")
    assert env.run(program).stdout == "first second second\n"


WEAK = r"""
#include <stdio.h>
extern int cuInit(unsigned) __attribute__((weak));
extern int nvmlDeviceGetMemoryInfo(void *, void *) __attribute__((weak));
int main(void)
{
    printf("%d %d\n", cuInit != 0 ? cuInit(0) : -1, nvmlDeviceGetMemoryInfo != 0
        ? nvmlDeviceGetMemoryInfo(0, 0) : -1);
    return 0;
}
"""


def test_a_weak_reference_finds_no_driver_and_takes_no_gpu(env: World) -> None:
    """Our export makes it non-zero; the call says what a machine without a driver says."""
    assert env.run(compiled(WEAK)).stdout == "100 12\n"
    assert env.manager.verbs() == []


# -- programs without CUDA --


@pytest.mark.parametrize("more", [{}, {"LD_BIND_NOW": "1"}], ids=["lazy", "bound at once"])
def test_a_program_without_cuda(env: World, more: dict[str, str]) -> None:
    env.environ.update(more)
    for command in (["/bin/true"], ["/bin/ls", "/"], ["/bin/sh", "-c", "exit 7"]):
        bare, with_shim = env.run(*command, shim=False), env.run(*command)
        assert (with_shim.returncode, with_shim.stdout, with_shim.stderr) == (
            bare.returncode,
            bare.stdout,
            bare.stderr,
        )
    assert env.manager.verbs() == []


def test_exit_codes_and_signals_are_the_programs_own(env: World) -> None:
    assert env.run("/bin/sh", "-c", "kill -TERM $$").returncode == -15
    assert env.python("raise SystemExit(3)").returncode == 3


def test_closed_standard_descriptors_stay_closed(env: World) -> None:
    source = """
import ctypes, os, sys
out = os.dup(1)
os.set_inheritable(out, False)
for fd in (0, 1, 2):
    os.close(fd)
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0)
open_ones = [fd for fd in (0, 1, 2) if os.path.exists(f"/proc/self/fd/{fd}")]
os.write(out, f"{code} {open_ones}".encode())
"""
    # The three are closed before anything else may take their numbers: the library itself lies
    # higher.
    assert env.python(source).stdout == "0 []"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a setuid program")
def test_a_setuid_program_is_left_alone(env: World) -> None:
    """Its loader ignores an LD_PRELOAD with a slash, but reads /etc/ld.so.preload.

    A program that loads the library stands for that.
    """
    source = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    (void)argc;
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*managed)(void) = library != NULL ? (int (*)(void))dlsym(library, "nodemgr_managed")
        : NULL;
    int (*begin)(long, long, long, void *) = library != NULL
        ? (int (*)(long, long, long, void *))dlsym(library, "nodemgr_begin") : NULL;
    printf("%d %d %s\n", managed ? managed() : -1, begin ? begin(-1, -1, -1, NULL) : -1,
        getenv("PYTHONPATH") ? "path" : "-");
    return 0;
}
"""
    library = copy_library(env.directory / "payload")
    program = Path(shutil.copy(compiled(source), env.directory / "python3"))
    assert env.run(program, library, shim=False).stdout == "1 1 -\n"
    os.chown(program, 65534, 65534)
    program.chmod(0o6755)
    ran = env.run(program, library, shim=False)
    assert ran.stdout == "0 7 -\n", ran  # not managed, without rules


# -- Python interpreters --


def python_path(env: World, *command: str | Path) -> str:
    return env.run(*command, "-c", "import os; print(os.environ.get('PYTHONPATH'))").stdout.strip()


def test_a_python_interpreter_gets_the_hook(env: World) -> None:
    directory = str(LIBRARY.parents[2] / "sitecustomize")
    assert python_path(env, sys.executable) == directory
    env.environ["PYTHONPATH"] = "/a:/b"
    assert python_path(env, sys.executable) == f"{directory}:/a:/b"
    for behind in (f"/a:{directory}", f"{directory}:/a:{directory}"):
        env.environ["PYTHONPATH"] = f"/b:{behind}"
        assert python_path(env, sys.executable) == f"{directory}:/b:/a"
    many = ":".join(f"/bazel/runfiles/package_{number}" for number in range(1_000))
    env.environ["PYTHONPATH"] = many
    assert python_path(env, sys.executable) == f"{directory}:{many}"


def test_what_is_no_python_interpreter_keeps_its_environment(env: World) -> None:
    assert "PYTHONPATH" not in env.run("/usr/bin/env").stdout
    impostor = Path(shutil.copy("/usr/bin/env", env.directory / "pythonish"))
    assert "PYTHONPATH" not in env.run(impostor).stdout
    namesake = Path(shutil.copy("/usr/bin/env", env.directory / "python3.11-dbg"))
    assert "PYTHONPATH" in env.run(namesake).stdout


FOLLOWS = """
import os, ctypes, json
{before}
held = ctypes.{loader}("libcuda.so.1").cuInit(0)
names = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NODEMGR_VISIBLE", "NODEMGR_TASK")
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
told = dict((name, os.environ.get(name)) for name in names)
read = dict((name, getenv(name.encode()).decode()) for name in names)
print(json.dumps([held, told, told == read]))
"""


@pytest.mark.parametrize("loader", ["CDLL", "PyDLL"])  # without and with the GIL
@pytest.mark.parametrize("python", interpreters())
def test_os_environ_shows_what_was_granted_where_no_hook_of_ours_asked(
    env: World, python: str, loader: str
) -> None:
    ran = env.run(python, "-I", "-c", FOLLOWS.format(before="", loader=loader))
    held, told, as_in_c = json.loads(ran.stdout)
    assert (held, as_in_c, ran.stderr) == (0, True, "")
    assert (told["CUDA_VISIBLE_DEVICES"], told["NODEMGR_VISIBLE"]) == (env.uuids[0], env.uuids[0])
    assert len(told["NODEMGR_TASK"]) == 32


IN_A_THREAD = """
import os, ctypes, json, threading
held = []
cuda = ctypes.{loader}("libcuda.so.1")
thread = threading.Thread(target=lambda: held.append(cuda.cuInit(0)))
thread.start()
thread.join()
for _ in range(10_000):  # the main thread makes a pending call at its next chance
    if "NODEMGR_VISIBLE" in os.environ:
        break
print(json.dumps([held, os.environ.get("CUDA_VISIBLE_DEVICES")]))
"""


@pytest.mark.parametrize("loader", ["CDLL", "PyDLL"])
@pytest.mark.parametrize("python", interpreters())
def test_os_environ_shows_what_another_thread_was_granted(
    env: World, python: str, loader: str
) -> None:
    ran = env.run(python, "-I", "-c", IN_A_THREAD.format(loader=loader))
    assert (json.loads(ran.stdout), ran.stderr) == ([[0], env.uuids[0]], "")


@pytest.mark.parametrize(
    "before",
    [
        "os.environ = dict(os.environ)",
        "os.environ._data = None",
        "del os.environ",
        "import sys; del sys.modules['os']",
    ],
)
def test_an_os_environ_of_the_programs_own_stays_as_it_is(env: World, before: str) -> None:
    program = f"import os, ctypes\n{before}\nprint(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    ran = env.run(sys.executable, "-I", "-c", program)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("how", ["off", "unmanaged"])
def test_python_is_left_alone_where_it_is_not_managed(env: World, how: str) -> None:
    if how == "off":
        env.environ["NODEMGR_OFF"] = "1"
    ran = env.run(
        sys.executable, "-c", "import os; print(os.environ.get('PYTHONPATH'))", managed=how == "off"
    )
    assert ran.stdout == "None\n"


def test_off_means_off(env: World) -> None:
    env.environ["NODEMGR_OFF"] = "1"
    with env.probe() as probe:
        assert probe.cuMemAlloc_v2(probe.alloc(8), 2 << 30) == 0  # more than the quota
        assert env.used() == 0
        assert env.manager.verbs() == []
        assert probe.tell("env", "CUDA_VISIBLE_DEVICES") == "-"


# -- other guests --


def sanitizer(name: str) -> str | None:
    """The runtime's file, None where the compiler has none."""
    path = subprocess.run(
        ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return path if os.path.isabs(path) else None


ALLOCATES = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    char *text = malloc(100);
    strcpy(text, "allocated");
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    int (*take)(unsigned long *, unsigned long) = (int (*)(unsigned long *,
        unsigned long))dlsym(cuda, "cuMemAlloc_v2");
    int (*give)(unsigned long) = (int (*)(unsigned long))dlsym(cuda, "cuMemFree_v2");
    unsigned long address = 0;
    printf("%s %d", text, init(0));
    printf(" %d", retain(&context, 0));
    printf(" %d", set(context));
    printf(" %d", take(&address, 2ul << 30));
    printf(" %d", take(&address, 1 << 20));
    printf(" %d\n", give(address));
    free(text);
    return 0;
}
"""

ALLOCATED = "allocated 0 0 0 2 0 0\n"  # two GiB are refused: the quota is one


@pytest.mark.parametrize("guest", ["libjemalloc.so.2", "libfaketime.so.1", "libeatmydata.so"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_beside_another_preload(guest: str, order: str, env: World) -> None:
    launch_hosts = [
        Path("/usr/lib/x86_64-linux-gnu") / guest,
        Path("/usr/lib/x86_64-linux-gnu/faketime") / guest,
        Path("/usr/lib64") / guest,
    ]
    other = next((str(place) for place in launch_hosts if place.exists()), None)
    if other is None:
        pytest.skip(f"{guest} is not installed")
    pair = [other, str(LIBRARY)] if order == "before" else [str(LIBRARY), other]
    env.environ["LD_PRELOAD"] = " ".join(pair)
    ran = env.run(compiled(ALLOCATES))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, ALLOCATED, 1)
    assert "out of GPU memory by quota" in ran.stderr
    assert env.manager.verbs()[0] == "ACQUIRE"


SANITIZERS = {
    "address": "libasan.so",
    "thread": "libtsan.so",
    "undefined": "libubsan.so",
    "leak": "liblsan.so",
}


def sanitized(kind: str, source: str = ALLOCATES, *flags: str) -> Path:
    """A program under that sanitizer."""
    if sanitizer(SANITIZERS[kind]) is None:
        pytest.skip(f"no {kind} sanitizer here")
    return compiled(source, f"-fsanitize={kind}", *flags)


@pytest.mark.parametrize("kind", SANITIZERS)
def test_in_a_sanitized_program(kind: str, env: World) -> None:
    """The program starts unchanged, its runtime behind the shim, and finds no fault or leak."""
    ran = env.run(sanitized(kind))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, ALLOCATED, 1)
    assert "out of GPU memory by quota" in ran.stderr


@pytest.mark.parametrize("kind", ["address", "thread", "leak"])
def test_behind_a_runtime_that_is_preloaded(kind: str, env: World) -> None:
    """The runtime looks up libc's functions through our dlsym before any of them can be called."""
    program = sanitized(kind)
    env.environ["LD_PRELOAD"] = f"{Path(str(sanitizer(SANITIZERS[kind]))).resolve()} {LIBRARY}"
    ran = env.run(program)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, ALLOCATED, 1)


def test_in_a_program_with_a_static_runtime(env: World) -> None:
    """As clang links AddressSanitizer by default."""
    ran = env.run(sanitized("address", ALLOCATES, "-static-libasan"))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, ALLOCATED, 1)


OVERFLOWS = r"""
#include <stdlib.h>
int main(int argc, char **argv)
{
    volatile char *text = malloc(4 + argc);
    (void)argv;
    text[argc + 4] = 0;
    return 0;
}
"""

OWN_DEFAULTS = r"""
const char *__asan_default_options(void) { return "verify_asan_link_order=0:exitcode=45"; }
"""


@pytest.mark.parametrize(
    ("own", "options", "expected"),
    [
        ("", None, 1),
        ("", "exitcode=44", 44),
        (OWN_DEFAULTS, None, 45),
        (OWN_DEFAULTS, "exitcode=44", 44),
    ],
)
def test_a_sanitizer_still_has_its_programs_and_its_users_options(
    own: str, options: str | None, expected: int, env: World
) -> None:
    if options is not None:
        env.environ["ASAN_OPTIONS"] = options
    ran = env.run(sanitized("address", OVERFLOWS + own))
    assert ran.returncode == expected
    assert "heap-buffer-overflow" in ran.stderr


def test_in_valgrind(env: World) -> None:
    """Without the leak search, which would read all of the simulated driver's addresses."""
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind here")
    options = ("-q", "--vgdb=no", "--error-exitcode=46", "--leak-check=no")  # no pipes in /tmp
    ran = env.run("valgrind", *options, compiled(ALLOCATES))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, ALLOCATED, 1)


BEFORE_MAIN = r"""
#include <dlfcn.h>
#include <stdio.h>
static int early = -1;
__attribute__((constructor(101))) static void before_all(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = cuda != NULL ? (int (*)(unsigned))dlsym(cuda, "cuInit") : NULL;
    early = init != NULL ? init(0) : -2;
}
int main(void)
{
    printf("%d\n", early);
    return 0;
}
"""


def test_a_static_initialiser_that_uses_cuda(env: World) -> None:
    assert env.run(compiled(BEFORE_MAIN)).stdout == "0\n"
    assert env.manager.verbs()[0] == "ACQUIRE"


EARLY = r"""
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *),
    cuMemAlloc_v2(unsigned long *, unsigned long);
int early[4];
unsigned long early_address;
__attribute__((constructor)) static void before_the_shim(void)
{
    void *context = 0;
    early[0] = cuInit(0);
    early[1] = cuDevicePrimaryCtxRetain(&context, 0);
    early[2] = cuCtxSetCurrent(context);
    early[3] = cuMemAlloc_v2(&early_address, 3 << 20);
}
"""

CHILDREN = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern int early[4], cuMemAlloc_v2(unsigned long *, unsigned long), cuMemFree_v2(unsigned long);
extern int cuCtxGetCurrent(void **), cuCtxSetCurrent(void *);
extern unsigned long early_address;
static void *context;

static void *in_a_thread(void *result)
{
    unsigned long address;
    cuCtxSetCurrent(context);
    *(int *)result = cuMemAlloc_v2(&address, 1 << 20) != 0 || cuMemFree_v2(address) != 0;
    return 0;
}

static int status_of(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void)
{
    unsigned long address;
    pthread_t thread;
    int threaded = -1;
    cuCtxGetCurrent(&context);
    pthread_create(&thread, 0, in_a_thread, &threaded);
    pthread_join(thread, 0);
    pid_t spawned = vfork();
    if (spawned == 0) {
        execl("/bin/sh", "sh", "-c", "exit 7", (char *)0);
        _exit(1);
    }
    int executed = status_of(spawned);
    pid_t cloned = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    /* no handler of pthread_atfork hears of it */
    if (cloned == 0)
        _exit(cuMemAlloc_v2(&address, 1 << 20) != 0 && cuMemFree_v2(early_address) != 0 ? 5 : 1);
    int refused = status_of(cloned);
    printf("%d %d %d %d thread %d vfork %d clone %d\n", early[0], early[1], early[2], early[3],
        threaded, executed, refused);
    fflush(stdout);
    getchar();
    printf("%d\n", cuMemFree_v2(early_address));
    fflush(stdout);
    getchar();
    return 0;
}
"""


@pytest.mark.parametrize("more", [{}, {"LD_BIND_NOW": "1"}], ids=["lazy", "bound at once"])
def test_memory_from_before_our_constructor_and_children_of_all_kinds(
    env: World, more: dict[str, str]
) -> None:
    """A library that the program needs is initialised before us."""
    env.environ.update(more)
    library = shared(EARLY, env.directory, "libearly.so")
    program = compiled(
        CHILDREN,
        f"-Wl,--no-as-needed,{library}",
        f"-Wl,-rpath,{env.directory}",
        *LINKED_WITH_DRIVER,
    )
    running = subprocess.Popen(
        [program], env=env.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdin is not None
    assert running.stdout is not None
    with running:
        assert running.stdout.readline() == "0 0 0 0 thread 0 vfork 7 clone 5\n"
        env.agree(3 << 20)
        running.stdin.write("\n")
        running.stdin.flush()
        assert running.stdout.readline() == "0\n"
        env.agree(0)
        running.stdin.close()
    assert running.returncode == 0


@pytest.mark.parametrize("stride", [512, 4096, 2 << 20, 66 << 20])
def test_the_first_blocks_need_no_new_memory(stride: int, tmp_path: Path) -> None:
    sources = ["account/blocks.c", "base/prim.c", PROGRAMS / "first_blocks.c"]
    program = compile_c(tmp_path / "first_blocks", sources, "-Wl,--wrap=mmap")
    result = subprocess.run(
        [program, "1000", str(stride)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
