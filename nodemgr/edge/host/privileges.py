"""The rights of the manager after its start: the capabilities that it uses, and nothing else.

Knows: Linux capabilities, prctl, which parts of the manager need which right. Must not know:
settings, sockets, the use of a right.

As root on a node the manager could do anything, and it reads packets of strangers. So it gives
rights up after the directories are made and the driver is awake, and before the first thread and
the first socket. Every other capability is given up for good. No program that it might start gains
any. Only root may read its memory (the keys of UDP environments). Files without an explicit mode
are its own. Capabilities belong to threads: the later ones inherit the rest.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 4, 38, 24
CAPABILITY_VERSION_3 = 0x20080522
UMASK = 0o077
"""A manager's, from its start: what others may see is given a mode where it is made."""
DRIVER_LIMITS, DEVICE_GATE, OLD_KERNEL = "driver limits", "device gate", "old kernel"
"""Surroundings in which more is needed."""


class Capability(NamedTuple):
    number: int
    name: str
    why: str
    only_with: frozenset[str] = frozenset()
    """Kept in these surroundings alone; empty: always."""


RETAINED = (
    Capability(0, "CAP_CHOWN", "the control sockets are given to the group that may use them"),
    Capability(
        2,
        "CAP_DAC_READ_SEARCH",
        "/proc/PID/environ and /proc/PID/fd are readable to the process's own user alone",
    ),
    Capability(
        5,
        "CAP_KILL",
        "processes of other users are ended where --enforce kill or stalled = kill says so",
    ),
    Capability(
        12,
        "CAP_NET_ADMIN",
        "the kernel takes the device gate's program, and reports its attachments, "
        "to no other process",
        frozenset({DEVICE_GATE}),
    ),
    Capability(
        19,
        "CAP_SYS_PTRACE",
        "a process's environment, namespaces and descriptors identify its owner",
    ),
    Capability(
        21,
        "CAP_SYS_ADMIN",
        "the driver's own memory limits, and what kernels before 5.9 ask for",
        frozenset({DRIVER_LIMITS, OLD_KERNEL}),
    ),
    Capability(
        39,
        "CAP_BPF",
        "the device gate's maps and programs are made, opened and written",
        frozenset({DEVICE_GATE}),
    ),
    Capability(
        40,
        "CAP_CHECKPOINT_RESTORE",
        "a ledger that a program has closed is taken from what it maps (/proc/PID/map_files)",
    ),
)
"""Each capability that the manager keeps, and what breaks without it."""


class PrivilegesNotDropped(OSError):
    """The kernel let nothing be given up. One line."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def surroundings(*, driver_limits: bool, device_gate: bool) -> frozenset[str]:
    """The surroundings of this machine."""
    is_old = _last() < max(row.number for row in RETAINED)
    here = {
        DRIVER_LIMITS: driver_limits,
        DEVICE_GATE: device_gate,
        OLD_KERNEL: is_old,
    }
    return frozenset(name for name, is_here in here.items() if is_here)


def retained(here: Collection[str]) -> frozenset[int]:
    """The numbers of what is kept in these surroundings."""
    return frozenset(
        row.number for row in RETAINED if not row.only_with or row.only_with.intersection(here)
    )


def give_up_the_rest(here: Collection[str]) -> None:
    """Drops the other capabilities of this thread and of the threads that it starts.

    Another user's than root's has nothing to give up. Raises PrivilegesKept.
    """
    keep_only(retained(here))


def keep_only(wanted: Collection[int]) -> None:
    """Give up every capability but these, for good. Raises PrivilegesNotDropped."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if os.geteuid() != 0:
        return
    close_memory()
    if held() & 1 << 8:  # CAP_SETPCAP; without it the bounding set stays as inherited
        for number in range(_last() + 1):
            if number not in wanted:
                _prctl(PR_CAPBSET_DROP, number)
    _set(held() & sum(1 << number for number in wanted))


def close_memory() -> None:
    """No other process of the same user may read this one's memory or trace it."""
    _prctl(PR_SET_DUMPABLE, 0)


def end_with_parent() -> None:
    """The kernel sends SIGTERM when the parent ends. A change of the user undoes this."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def held() -> int:
    """The effective capabilities of this thread, a bit each."""
    sets = (_Sets * 2)()
    _call("capget", ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), ctypes.byref(sets))
    return int(sets[0].effective) | int(sets[1].effective) << 32


def names(bits: int) -> list[str]:
    """The names for people; a capability beyond the table by its number."""
    known = {row.number: row.name for row in RETAINED}
    return [known.get(number, f"capability {number}") for number in range(64) if bits >> number & 1]


def _set(bits: int) -> None:
    low, high = bits & 0xFFFF_FFFF, bits >> 32
    sets = (_Sets * 2)(_Sets(low, low, 0), _Sets(high, high, 0))
    _call("capset", ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), ctypes.byref(sets))


def _prctl(option: int, argument: int) -> None:
    _call("prctl", *(ctypes.c_ulong(value) for value in (option, argument, 0, 0, 0)))


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise PrivilegesNotDropped(f"{name}: {os.strerror(ctypes.get_errno())}")


def _last() -> int:
    """The highest capability that this kernel has."""
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())
