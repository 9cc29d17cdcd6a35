"""Programs that once noticed nodemgr: each alone on the node, and the same program under `run`.

A row is a script for bash in a folder of its own. In it, `run -- COMMAND` is `nodemgr run` in the
environment alice, and `job -- COMMAND` is `nodemgr submit`, with the output of the job at its end;
options stand before `--`. In the bare run both are COMMAND alone. `$PYTHON` is the tests' Python,
`count` prints the number of GPUs that CUDA shows, and the module `cupy` is a small stand-in. The
two results are all that the script prints, stdout and stderr together. SAME: the program notices
nothing.

The node has four GPUs of 16 GiB; alice may use them all, and 32 GiB. The environment eager asks at
the import of a framework. To extend the table, add a
row: the script with the least that shows the fault, and the results as the pages promise them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SAME = "the same as bare"


@dataclass(frozen=True)
class Program:
    name: str
    script: str
    bare: str
    ours: str
    files: Mapping[str, str] = field(default_factory=dict)
    needs: str = "bash"
    """A program without which the row is skipped."""
    installed: bool = False
    """In an installation by pip in a path with a blank.

    `install` and `remove` are pip's there; the bare run ignores them.
    """


TOO_MUCH = """
import ctypes, os, socket, sys
cuda = ctypes.CDLL("libcuda.so.1")
def use_cuda():
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(15 << 30))
"""
"""Beyond the 8 GiB that alice has on a GPU: the shim has a line to print."""

DATA = {
    "file.py": TOO_MUCH
    + """
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
assert data == 2
os.write(data, b"one ")
use_cuda()
os.write(data, b"two")
os.write(1, open("data", "rb").read())
""",
    "pair.py": TOO_MUCH
    + """
near, far = socket.socketpair()
assert near.fileno() == 2
near.send(b"one ")
use_cuda()
near.send(b"two")
os.write(1, far.recv(1000))
""",
    "put.py": TOO_MUCH
    + """
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.write(data, b"one ")
os.dup2(data, 2)
use_cuda()
os.write(2, b"two")
os.write(1, open("data", "rb").read())
""",
}

POISON = dict.fromkeys(
    ("struct.py", "signal.py", "json.py", "click.py", "zmq.py", "nodemgr.py", "client_plugin.py"),
    "raise SystemExit('a module of the user was imported')",
)
FIRST_USE = "import cupy; print(cupy.first_use())"
DROPPED = (
    "nodemgr: CUDA_VISIBLE_DEVICES=0 of this shell is dropped: it numbers the node's GPUs; --gpus"
    " has the number of GPUs"
)

HOOK_ALONE = (
    "nodemgr: only the Python hook is active in this process, and no memory quota holds in it,"
    " because another LD_PRELOAD has taken the place of libnodemgr.so: add to the variable instead"
)

PROGRAMS = [
    Program(
        "a data file is descriptor 2, because the parent closed stderr",
        "run -- $PYTHON -I file.py 2>&-",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "the same in a Python with the hook",
        "run -- $PYTHON file.py 2>&-",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "a connection is descriptor 2",
        "run -- $PYTHON -I pair.py 2>&-",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "a program puts a file of its own in the place of stderr",
        "run -- $PYTHON put.py",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "a mask that a shell left behind, and a job that asks for two GPUs",
        "CUDA_VISIBLE_DEVICES=0 job --gpus 2 -- count",
        bare="1",
        ours=f"{DROPPED}\n2",
    ),
    Program(
        "the same under run",
        "CUDA_VISIBLE_DEVICES=0 run --gpus 2 -- count",
        bare="1",
        ours=f"{DROPPED}\n2",
    ),
    Program(
        "without --gpus, run asks for as many GPUs as the mask names",
        "CUDA_VISIBLE_DEVICES=2,3 run -- count",
        bare="2", ours=SAME,
    ),
    Program(
        "an empty mask means no GPU",
        "CUDA_VISIBLE_DEVICES= job -- count",
        bare="0",
        ours="nodemgr: CUDA_VISIBLE_DEVICES= means --gpus 0: unset it for GPUs\n0",
    ),
    Program(
        "an empty mask contradicts --gpus",
        "CUDA_VISIBLE_DEVICES=-1 run --gpus 1 -- count; echo code $?",
        bare="0\ncode 0",
        ours="nodemgr: CUDA_VISIBLE_DEVICES=-1 hides all GPUs, and --gpus asks for 1: unset the "
        "variable, or ask for --gpus 0\ncode 2",
    ),
    Program(
        "in a job of four GPUs, four trials take one each",
        "job --gpus 4 -- bash each.sh",
        bare="4", ours=SAME,
        files={
            "each.sh": """
for i in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$i run --gpus 1 -- hold -s 1 & done |
    grep -o '"uuid": *"[^"]*"' | sort -u | wc -l
"""
        },
    ),
    Program(
        "a mask beyond the grant shows no GPU, as in CUDA",
        "run --gpus 2 -- env CUDA_VISIBLE_DEVICES=7 count",
        bare="0", ours=SAME,
    ),
    Program(
        "a script reads CUDA_VISIBLE_DEVICES before anything uses CUDA",
        """job --gpus 2 -- sh -c 'echo "$CUDA_VISIBLE_DEVICES" | tr , " " | wc -w'""",
        bare="0", ours="2",
    ),
    Program(
        "a program below a job chooses one of its GPUs",
        "job --gpus 2 -- sh -c 'CUDA_VISIBLE_DEVICES=1 exec count'",
        bare="1", ours=SAME,
    ),
    Program(
        "the same in a Python with the hook",
        f"job --gpus 2 -- sh -c 'CUDA_VISIBLE_DEVICES=1 exec $PYTHON -c \"{FIRST_USE}\"'",
        bare="1", ours=SAME,
    ),
    Program(
        "a job's script parses the mask as integers",
        "job --gpus 2 --visible index -- sh -c 'echo $((${CUDA_VISIBLE_DEVICES%,*} + 0))'",
        bare="0", ours=SAME,
    ),
    Program(
        "a Python program does after its first use of CUDA",
        "run --gpus 2 --visible index -- $PYTHON parses.py",
        bare="4 []", ours="2 [0, 1]",
        files={
            "parses.py": """
import cupy, os
count, mask = cupy.first_use(), os.environ.get("CUDA_VISIBLE_DEVICES")
print(count, [int(entry) for entry in mask.split(",")] if mask else [])
"""
        },
    ),
    Program(
        "a script under run reads the mask before anything uses CUDA",
        "run --gpus 2 --acquire start --"
        """ sh -c 'echo "$CUDA_VISIBLE_DEVICES" | tr , " " | wc -w'""",
        bare="0", ours="2",
    ),
    Program(
        "it starts programs that choose one GPU, and one that takes all",
        "run --gpus 2 --acquire start -- sh -c 'CUDA_VISIBLE_DEVICES=1 count; exec count'",
        bare="1\n4", ours="1\n2",
    ),
    Program(
        "two workers on the one GPU that was asked for",
        "run --gpus 1 -- env LOCAL_WORLD_SIZE=2 count",
        bare="4", ours="1",
    ),
    Program(
        "the parent ignores SIGPIPE, as systemd does",
        "trap '' PIPE; run -- grep SigIgn /proc/self/status",
        bare="SigIgn:\t0000000000001000", ours=SAME,
    ),
    Program(
        "the parent does not",
        "run -- grep SigIgn /proc/self/status",
        bare="SigIgn:\t0000000000000000", ours=SAME,
    ),
    Program(
        "PYTHON variables are for the command alone",
        "PYTHONHOME=/opt/x PYTHONVERBOSE=1 run -- sh -c 'echo $PYTHONHOME $PYTHONVERBOSE'",
        bare="/opt/x 1", ours=SAME,
    ),
    Program(
        "the user's modules have the names of ours",
        "export PYTHONPATH=$PWD; run -- echo fine && job -- echo fine",
        bare="fine\nfine", ours=SAME, files=POISON,
    ),
    Program(
        "modules of such names lie in the working directory",
        "run -- echo fine && job -- echo fine",
        bare="fine\nfine", ours=SAME, files=POISON,
    ),
    Program(
        "the user's sitecustomize runs once",
        "PYTHONPATH=$PWD run -- $PYTHON -c 'pass'",
        bare="customized", ours=SAME, files={"sitecustomize.py": "print('customized')"},
    ),
    Program(
        "a locale of the user's",
        "unset LC_ALL; LC_CTYPE=POSIX run -- sh -c 'echo $LC_CTYPE'",
        bare="POSIX", ours=SAME,
    ),
    Program(
        "a child of a Python program gets another LD_PRELOAD",
        "run -- $PYTHON parent.py",
        bare="4", ours=f"{HOOK_ALONE}\n4",
        files={
            "parent.py": f"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {FIRST_USE!r}], env=dict(os.environ, LD_PRELOAD=""))
"""
        },
    ),
    Program(
        "the child calls CUDA by ctypes, which no hook sees",
        "run -- bash -c 'LD_PRELOAD= $PYTHON bare.py'; run -- $PYTHON bare.py",
        bare="0\n0", ours=f"{HOOK_ALONE}\n0\n0",
        files={
            "bare.py": """
import ctypes
for _ in range(2):
    cuda = ctypes.CDLL("libcuda.so.1")
print(cuda.cuInit(0), flush=True)
"""
        },
    ),
    Program(
        "the same by cffi",
        "run -- bash -c 'LD_PRELOAD= $PYTHON foreign.py'; run -- $PYTHON foreign.py",
        bare="0\n0", ours=f"{HOOK_ALONE}\n0\n0",
        files={
            "foreign.py": """
import cffi
ffi = cffi.FFI()
ffi.cdef("int cuInit(unsigned);")
for _ in range(2):
    cuda = ffi.dlopen("libcuda.so.1")
print(cuda.cuInit(0), flush=True)
"""
        },
    ),
    Program(
        "a shell script sets another LD_PRELOAD",
        f"run -- bash -c 'LD_PRELOAD= $PYTHON -c \"{FIRST_USE}\"'",
        bare="4", ours=f"{HOOK_ALONE}\n4",
    ),
    Program(
        "a launcher puts its own sitecustomize in front of the hook's",
        "run -- sh -c 'PYTHONPATH=$PWD:$PYTHONPATH exec $PYTHON hooked.py'",
        bare="launched\nFalse", ours="launched\nTrue",
        files={
            "sitecustomize.py": "print('launched')",
            "hooked.py": "import sys; print(hasattr(sys.meta_path[0], 'nodemgr'))",
        },
    ),
    Program(
        "env -i drops all variables: the program is outside of the environment, as the page says",
        "run -- env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH PYTHON=$PYTHON $(type -P count)",
        bare="4", ours=SAME,
    ),
    Program(
        "a launcher puts a PYTHONPATH of 9 kB in front of the hook's",
        "run -- sh -c 'PYTHONPATH=/$(printf %09000d 0):$PYTHONPATH exec $PYTHON hooked.py'",
        bare="False", ours="True",
        files={"hooked.py": "import sys; print(hasattr(sys.meta_path[0], 'nodemgr'))"},
    ),
    Program(
        "a tmux server was started outside before",
        "ln -s $(type -P true) tmux; export TMUX_TMPDIR=.; exec 3< <(exec $PYTHON server.py);"
        " read -u 3; run -- ./tmux new; run -- ./tmux -L gpu; kill $!",
        bare="",
        ours="nodemgr: ./tmux hands its windows to a server that was started outside of alice, and"
        " their programs get no GPUs: start a server inside: ./tmux -L gpu",
        files={
            "server.py": """
import os, signal, socket
os.mkdir(f"tmux-{os.geteuid()}")
server = socket.socket(socket.AF_UNIX)
server.bind(f"tmux-{os.geteuid()}/default")
server.listen()
print("ready", flush=True)
signal.pause()
"""
        },
    ),
    Program(
        "no tmux server runs",
        "ln -s $(type -P true) tmux; TMUX_TMPDIR=. run -- ./tmux new",
        bare="", ours=SAME,
    ),
    Program(
        "a session of screen that was started outside before",
        "ln -s $(type -P true) screen; run -- ./screen -r work",
        bare="",
        ours="nodemgr: ./screen hands its windows to a server that was started outside of alice,"
        " and their programs get no GPUs: start a session inside: ./screen -S gpu",
    ),
    Program(
        "an image of Apptainer that has no client",
        "ln -s $(type -P true) apptainer; run -- ./apptainer exec image.sif python train.py",
        bare="",
        ours="nodemgr: apptainer starts an image that does not have nodemgr's client: its programs"
        " get no GPUs from nodemgr, and no quota holds them; bind the client into it"
        " (docs/containers.md, Apptainer)",
    ),
    Program(
        "a Python that takes no variables, as pex, PyInstaller and an embedded one, asks at its "
        "first use of CUDA",
        "for flags in '' -ISE; do run --env eager -- $PYTHON $flags early.py; done",
        bare="False 4\nFalse 4", ours="True 4\nFalse 4",
        files={
            "early.py": """
import os, sys
sys.path.extend(os.environ["PYTHONPATH"].split(":"))
import cupy
print("NODEMGR_VISIBLE" in os.environ, cupy.first_use())
"""
        },
    ),
    Program(
        "a program asks for its memory, frees it and ends while its task is suspended",
        "run -- $PYTHON away.py 2>/dev/null",
        bare="0 0", ours=SAME,
        files={
            "away.py": """
import ctypes, json, os, subprocess
cuda, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t
context, address, free = ctypes.c_void_p(), ctypes.c_uint64(), size()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), size(1 << 30)) == 0
if "NODEMGR_TASK" in os.environ:
    tasks = json.loads(subprocess.check_output(["nodemgr", "status", "--json"]))["tasks"]
    last = max((task["id"] for task in tasks), key=lambda name: int(name[1:]))
    subprocess.run(["nodemgr", "suspend", last], check=True)
print(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(size())), cuda.cuMemFree_v2(address))
"""
        },
    ),
    Program(
        "PyPy sees after its first use of CUDA which GPU it has",
        "run --gpus 1 --visible index -- pypy3 parses.py",
        bare="0 None", ours="0 0",
        needs="pypy3",
        files={
            "parses.py": """
import ctypes, os
print(ctypes.CDLL("libcuda.so.1").cuInit(0), os.environ.get("CUDA_VISIBLE_DEVICES"))
"""
        },
    ),
    Program(
        "the path of the installation has a blank",
        "run --gpus 1 -- count; job --gpus 1 -- count",
        bare="4\n4", ours="1\n1",
        installed=True,
    ),
    Program(
        "a program starts others during an upgrade, and while nothing is installed",
        "run --gpus 1 -- bash beside.sh",
        bare="4", ours="1",
        files={
            "beside.sh": """
{
    install & installer=$!
    count
    while kill -0 $installer 2>&-; do count; done
    remove
    count
    install
} | uniq
"""
        },
        installed=True,
    ),
]  # fmt: skip
