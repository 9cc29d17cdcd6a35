"""A hostile process harms its own environment at most.

Neither the manager nor other environments' processes notice.

Its own environment's processes may be refused, or be granted more than the ledger would have given
(which the manager sees in the driver's figures); they never crash, and never get an answer other
than success or out of memory. After its environment's last task the ledger is as new.

Longer: `python -m tests.soak hostile`.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.soak.hostile import beside_a_hostile_process
from tests.support.manager import Manager


def test_others_do_not_notice_a_hostile_process(make_manager: Callable[..., Manager]) -> None:
    deeds = beside_a_hostile_process(make_manager(simulate="1x16GiB"), seconds=2.0, seed=3)
    assert deeds > 0
