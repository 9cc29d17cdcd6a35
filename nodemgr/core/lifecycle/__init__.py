"""Lives of requests, leases, processes and jobs: what each event changes, and the notifications
that follow.

May import: nodemgr.core.model, nodemgr.core.state and nodemgr.core.scheduler.
"""
