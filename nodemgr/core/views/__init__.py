"""The state for readers: the status snapshot, rows of jobs, the text of a CDI file.

May import: nodemgr.core (model, state, scheduler, lifecycle).
"""
