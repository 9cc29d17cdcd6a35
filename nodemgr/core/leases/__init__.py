"""Leases: what a task holds, from its grant to its end.

May import: core.model, core.state, core.scheduler.
"""
