"""Requests: a process asks for GPUs, is served when they are free, and learns its place until then.

May import: nodemgr.core.model, nodemgr.core.state, nodemgr.core.scheduler, nodemgr.core.lifecycle
and nodemgr.core.sharing.
"""
