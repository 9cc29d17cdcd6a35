"""The machine under the manager: clock, log, run directory, systemd, privileges, event loop.

May import: nodemgr.paths, nothing else of nodemgr.
"""
