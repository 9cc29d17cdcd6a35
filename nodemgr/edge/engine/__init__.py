"""The running manager: the daemon that steps the core, the job controller, the scheduler loop, the
informer.

May import: nodemgr.core, and every room below: all but setup and api.
"""
