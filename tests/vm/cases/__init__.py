"""The cases that are tried in the machines: a function each, and the table of them.

A case returns the facts that it saw, in one line; it raises MachineFault or AssertionError where
the node did not do as it should. Knows: `images`, `machine`, the verbs of nodemgr.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.vm.cases import closing, installing, limits, losing, packages, prices, services, users
from tests.vm.cases.lab import Lab

Case = Callable[[Lab], str]
CASES: dict[str, Case] = {
    "boot": services.boot,
    "restart": services.restart,
    "watchdog": services.watchdog,
    "hardening": services.hardening,
    "gate": closing.gate,
    "limits": limits.limits,
    "suspended": limits.suspended,
    "user": users.user,
    "prices": prices.prices,
    "reboot": losing.reboot,
    "warning": losing.warning,
    "power-cut": losing.power_cut,
    "upgrade": installing.upgrade,
    "uninstall": installing.uninstall,
    "bookworm": packages.of("bookworm"),
    "trixie": packages.of("trixie"),
}
"""By its name, in the order in which they are tried."""

__all__ = ["CASES", "Case", "Lab"]
