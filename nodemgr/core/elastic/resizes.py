"""The end of a scheduling pass: recalls for the requests that wait, offers of what is left over.

Knows: the pass's findings. Must not know: how a recall or an offer is chosen.
"""

from __future__ import annotations

from nodemgr.core.elastic import offers, recalls
from nodemgr.core.model.schema import RESIZES
from nodemgr.core.scheduler.passes import SchedulingPass
from nodemgr.core.state import elastic_leases
from nodemgr.core.state.draft import Draft


def settle(draft: Draft, scheduling_pass: SchedulingPass) -> None:
    """Called after each pass, once all requests are served that can be."""
    _forget_leaving(draft)
    if not elastic_leases.any_there(draft):
        for uuid in list(draft.calm_since):
            draft.calm_since.drop(uuid)
        return
    found = recalls.plan(draft)
    recalls.apply(draft, found)
    reserved = {*scheduling_pass.reserved, *scheduling_pass.held, *found.claimed, *found.reserved}
    waiting = {*scheduling_pass.turns, *scheduling_pass.full, *scheduling_pass.passed}
    offers.give(draft, reserved, waiting | scheduling_pass.left_out)


def _forget_leaving(draft: Draft) -> None:
    """After a while, memory that stays on a GPU that was left counts as lost."""
    for uuid in list(draft.left_until):
        until_ns = draft.left_until[uuid]
        if until_ns <= draft.now_ns:
            draft.left_until.drop(uuid)
        elif elastic_leases.any_there(draft):
            draft.at_latest(RESIZES, until_ns)
