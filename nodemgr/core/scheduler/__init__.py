"""Decisions about requests and jobs that wait: allocator, plan, backfill, scheduling pass, start
estimates, reasons.

May import: nodemgr.core.model and nodemgr.core.state.
"""
