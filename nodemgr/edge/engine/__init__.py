"""The running manager: daemon, job controller, scheduler loop, informer.

May import: nodemgr.core, and every room below: all but setup and api.
"""
