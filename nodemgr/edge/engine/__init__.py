"""The running manager: step engine, client hub, node monitor, controllers, scheduler loop.

May import: nodemgr.core, and every room below: all but forecast and api.
"""
