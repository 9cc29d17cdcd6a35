"""Runs a command as a shell runs `COMMAND &`: in the background of the terminal that stderr is.

    python -m tests.programs.background COMMAND [ARGUMENT]...

Knows: sessions and process groups. Must not know: the command.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios


def main(command: list[str]) -> int:
    os.setsid()
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)  # this process is the shell, and reads the terminal
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.execvp(command[0], command)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
