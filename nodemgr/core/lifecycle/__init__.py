"""Lives of leases, processes and jobs, and of their places in the queue: the effects of each event.

May import: nodemgr.core.model, nodemgr.core.placement, nodemgr.core.state and
nodemgr.core.scheduler.
"""
