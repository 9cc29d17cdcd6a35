"""Lives of requests, leases, processes and jobs: the effects of each event, notifications.

May import: nodemgr.core.model, nodemgr.core.state and nodemgr.core.scheduler.
"""
