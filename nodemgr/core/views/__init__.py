"""The state for readers: the status snapshot, figures, rows of jobs, a CDI file.

May import: nodemgr.core (model, state, scheduler, lifecycle).
"""
