"""The end of a scheduling pass: recalls for the requests that wait, offers of what is left over.

Knows: the pass's findings. Must not know: how a recall or an offer is chosen.
"""

from __future__ import annotations

from nodemgr.core.elastic import offers, recalls
from nodemgr.core.scheduler.passes import SchedulingPass
from nodemgr.core.state import elastic_leases
from nodemgr.core.state.draft import Draft


def settle(draft: Draft, scheduling_pass: SchedulingPass) -> None:
    """Called after each pass, once all requests are served that can be."""
    if not elastic_leases.any_there(draft):
        for uuid in list(draft.state.calm_since):
            draft.calm_since.drop(uuid)
        return
    found = recalls.plan(draft)
    recalls.apply(draft, found)
    kept = {*scheduling_pass.reserved, *scheduling_pass.held, *found.claimed, *found.reserved}
    waiting = {*scheduling_pass.turns, *scheduling_pass.full, *scheduling_pass.passed}
    offers.give(draft, kept, waiting | draft.inadmissible_envs())
