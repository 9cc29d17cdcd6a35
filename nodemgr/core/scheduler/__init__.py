"""Decisions about waiting requests and jobs: allocator, plan, pass, estimates, reasons.

May import: nodemgr.core.model, nodemgr.core.placement and nodemgr.core.state.
"""
