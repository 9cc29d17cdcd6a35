"""Execution of jobs, local and in containers: launcher, attempt directories, log retention.

May import: nodemgr.core.model, and the rooms host, kernel, rpc and clients.
"""
