"""Decisions about waiting requests and jobs: allocator, plan, pass, estimates, reasons.

May import: nodemgr.core.model and nodemgr.core.state.
"""
