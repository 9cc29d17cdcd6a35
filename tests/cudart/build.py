"""Builds the simulated libcudart.so.N for tests.

With it, programs that use the CUDA runtime (the CUDA build of PyTorch) run on the simulator.

Knows: where the public headers say which functions there are, which of them have a variant for
per-thread default streams, and how errors are called. Must not know: what any function does.

`python -m tests.cudart.build INCLUDE DIRECTORY` makes DIRECTORY/libcudart.so.N; INCLUDE holds
cuda_runtime_api.h of CUDA 13 or newer, N is its major version (they are in PyPI's
nvidia-cuda-runtime). A function that the sources here do not define returns cudaErrorNotSupported.
The symbols carry the version that programs are linked against, `libcudart.so.N`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

CFLAGS = [
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wstrict-prototypes",
]
LDFLAGS = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,--build-id=none"]
SOURCES = ["process.c", "memory.c", "streams.c", "kernels.c"]

NOT_SUPPORTED = 801
STUB = "__attribute__((weak)) int {name}(void) {{ return {result}; }}\n"
JUMP = '__asm__(".globl {name}\\n.type {name}, %function\\n{name}:\\n\\t" JUMP "{base}\\n");\n'
HEADING = """\
#if defined(__x86_64__)
#define JUMP "jmp "
#elif defined(__aarch64__)
#define JUMP "b "
#endif
#include "names.h"
"""

_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
_FUNCTION = re.compile(r"\b(?:CUDARTAPI|CUDARTAPI_CDECL)\s+(cuda[A-Z]\w*)\s*\(")
_VARIANT = re.compile(
    r"^\s*#\s*define\s+(cuda\w+)\s+__CUDART_API_PT([DS])[SZ]\((cuda\w+)\)", re.MULTILINE
)
_ERROR = re.compile(r"^\s*(cuda(?:Success|Error\w+))\s*=\s*(\d+)", re.MULTILINE)


def version_of(include: Path) -> int:
    """CUDART_VERSION, e.g. 13020; SystemExit where the headers are none of CUDA 13 or newer."""
    found = _VERSION.search((include / "cuda_runtime_api.h").read_text())
    version = int(found[1]) if found else 0
    if version < 13000:
        raise SystemExit(f"{include}: headers of the CUDA runtime 13 or newer are needed")
    return version


def functions(include: Path) -> set[str]:
    """Every function that the runtime's headers declare."""
    return set(_FUNCTION.findall((include / "cuda_runtime_api.h").read_text()))


def variants(include: Path) -> dict[str, str]:
    """Variants for per-thread default streams, each with the function it is a variant of."""
    text = (include / "cuda_runtime_api.h").read_text()
    return {
        f"{base}_{'ptds' if kind == 'D' else 'ptsz'}": base
        for _, kind, base in _VARIANT.findall(text)
    }


def stubs(include: Path) -> str:
    """C source: a stub for each function, which gives way to one of the sources.

    Every variant jumps to its function.
    """
    errors = _ERROR.findall((include / "driver_types.h").read_text())
    return "".join(
        [
            HEADING,
            *(STUB.format(name=name, result=NOT_SUPPORTED) for name in sorted(functions(include))),
            *(
                JUMP.format(name=name, base=base)
                for name, base in sorted(variants(include).items())
            ),
            "const nm_error_name nm_error_names[] = {\n",
            *(f'    {{{number}, "{name}"}},\n' for name, number in errors),
            "    {0, (void *)0},\n};\n",
        ]
    )


def _run(command: list[str]) -> None:
    finished = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if finished.returncode != 0:
        raise SystemExit(
            f"{shlex.join(command)}\n{finished.stdout}failed with {finished.returncode}"
        )


def build(include: Path, output_directory: Path) -> Path:
    """Builds the library and returns its path.

    SystemExit with the compiler's words if it fails.
    """
    output_directory.mkdir(parents=True, exist_ok=True)
    soname = f"libcudart.so.{version_of(include) // 1000}"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as temporary:
        generated = Path(temporary) / "stubs.c"
        generated.write_text(stubs(include))
        script = Path(temporary) / "versions"
        script.write_text(f"{soname} {{ global: cuda*; __cuda*; local: *; }};\n")
        sources = [str(HERE / name) for name in SOURCES]
        fresh = output_directory / f".{soname}.{os.getpid()}"
        headers = [f"-I{HERE}", "-isystem", str(include)]
        link = [
            *LDFLAGS,
            f"-Wl,-soname,{soname}",
            f"-Wl,--version-script={script}",
            "-lpthread",
            "-ldl",
        ]
        _run([*compiler, *CFLAGS, *headers, *sources, str(generated), *link, "-o", str(fresh)])
    return fresh.replace(output_directory / soname)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
