"""Messages of the build (csrc/build.py), which loads this table by its file's name."""

from __future__ import annotations

from .form import COMMAND_LINE, NODE, Message

CC_NOT_SPLIT = Message(
    COMMAND_LINE,
    "the variable CC is no command ({error}): {text!r}",
    "unset it, or name a C compiler in it",
)
CC_EMPTY = Message(
    COMMAND_LINE,
    "the variable CC is set and names no compiler",
    "unset it, or name a C compiler in it",
)
INSTALL_COMPILER = (
    "install one (Debian, Ubuntu: apt-get install build-essential; Fedora, RHEL: dnf install gcc),"
    " or name yours in $CC"
)
NO_COMPILER = Message(
    NODE,
    "nodemgr is built with a C compiler, and there is no {compiler!r} here",
    INSTALL_COMPILER,
)
COMPILER_BUILDS_NOTHING = Message(
    NODE, "{compiler!r} builds no program (no headers of libc, or no linker)", INSTALL_COMPILER
)
NO_PYTHON_HEADERS = Message(
    NODE,
    "the headers of Python {python} are missing (no Python.h in {directory})",
    "install them (Debian, Ubuntu: apt-get install python{python}-dev; Fedora, RHEL: dnf install"
    " python3-devel)",
)
COMMAND_FAILED_IN_BUILD = Message(
    NODE,
    "{command} failed with {code}",
    "its output is above; mend that, or report it with that output",
)
