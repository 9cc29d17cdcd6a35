"""Builds the simulator: the driver, NVML, and the library of nodemgr/simulator.py.

Knows: which sources make which library, and the compiler's flags.
Must not know: where the project wants them (its build passes the directory).

`python -m csrc.sim.build DIRECTORY` does the same by hand. Needs a C compiler, and no header but
libc's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from csrc import toolchain
from csrc.toolchain import CSRC, TranslationUnit

HERE = CSRC / "sim"

CFLAGS = (*toolchain.FLAGS, "-O1", f"-I{CSRC}")  # by -O2, bench/shim_calls.py measures the same
# References of a library to its own entry points stay inside it, even if another library exports
# the same names (a preloaded shim does). It is never unloaded, because a closed descriptor would
# drop its process's lock on the node.
LDFLAGS = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,--build-id=none"]
# By name: before glibc 2.34 what is in them is not in libc.so.6, and the images that load the
# simulator may be older than this.
LIBRARIES = ["-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"]

# Library -> the rooms (folders) with its sources. csrc/README.md says what lives in each.
ROOMS = {
    "libcuda.so.1": ("abi", "node", "lost", "driver", "timeline", "memory", "streams"),
    "libnvidia-ml.so.1": ("abi", "node", "lost", "nvml"),
    "libnodesim.so": ("node", "lost", "control"),
}

CUDA_ERROR_NOT_SUPPORTED = 801
# cuGetProcAddress of the drivers for Linux does not find them.
NOT_LOOKED_UP = {"cuEventCreateFromEGLSync", "cuWGLGetDevice"}
NVML_ERROR_NOT_SUPPORTED = 3

# Defined everywhere; the linker prefers the function of one of the sources above where there is
# one.
STUB = '__attribute__((weak, visibility("default"))) int {name}(void) {{ return {result}; }}\n'


def read_table(name: str) -> list[list[str]]:
    """The rows of a list below this folder, split at blanks, without comments."""
    lines = (HERE / name).read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def driver_stubs() -> str:
    """C source: a stub for every driver entry point, and the table for cuGetProcAddress."""
    rows = read_table("driver/driver_names.txt")
    stubs = [STUB.format(name=symbol, result=CUDA_ERROR_NOT_SUPPORTED) for symbol, *_ in rows]
    order = sorted(rows, key=lambda row: (row[1].encode(), int(row[2]), row[3]))
    table = [
        f'    {{"{base}", {version}, {"false" if stream == "-" else "true"}, (void *){symbol}}},\n'
        for symbol, base, version, stream in order
        if base not in NOT_LOOKED_UP
    ]
    return "".join(
        [
            '#include "sim/driver/lookup.h"\n',
            *stubs,
            "const nm_name nm_names[] = {\n",
            *table,
            "};\nconst size_t nm_name_count = sizeof nm_names / sizeof *nm_names;\n",
        ]
    )


def nvml_stubs() -> str:
    """C source: every NVML entry point as a stub."""
    return "".join(
        STUB.format(name=name, result=NVML_ERROR_NOT_SUPPORTED)
        for (name,) in read_table("nvml/nvml_names.txt")
    )


GENERATED = {"libcuda.so.1": driver_stubs, "libnvidia-ml.so.1": nvml_stubs}


def sources_of(library: str, generated: Path) -> list[Path]:
    """Its sources, the generated one in that directory."""
    sources = [path for room in ROOMS[library] for path in sorted((HERE / room).glob("*.c"))]
    stubs = [generated / f"{library}.c"] if library in GENERATED else []
    return [*stubs, *sources]


def units(generated: Path) -> list[TranslationUnit]:
    """All sources, each once; writes the generated ones."""
    for library, text_of in GENERATED.items():
        (generated / f"{library}.c").write_text(text_of())
    sources = dict.fromkeys(path for name in ROOMS for path in sources_of(name, generated))
    return [TranslationUnit(path, CFLAGS) for path in sources]


def build(output_directory: Path) -> list[Path]:
    """Builds the three libraries into `output_directory` and returns their paths.

    SystemExit with the compiler's words if it fails. A library that running processes have mapped
    is replaced, never written to.
    """
    outputs = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        compiled = toolchain.compile_all(units(directory), directory)
        for library in ROOMS:
            objects = [compiled[source] for source in sources_of(library, directory)]
            outputs.append(output_directory / library)
            toolchain.link([*objects, *LDFLAGS, f"-Wl,-soname,{library}", *LIBRARIES], outputs[-1])
    return outputs


if __name__ == "__main__":
    for path in build(Path(sys.argv[1])):
        print(path)
