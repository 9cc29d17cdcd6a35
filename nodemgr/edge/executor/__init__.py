"""Execution of jobs: the interface, its local and in-container forms, the launcher, attempt
directories, log retention.

May import: nodemgr.core.model, and the rooms host, kernel, rpc and clients.
"""
