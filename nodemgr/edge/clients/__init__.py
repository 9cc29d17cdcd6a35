"""Transports of the environments' clients: UNIX sockets and UDP, sessions, rate limits, the
descriptor filter.

May import: nodemgr.core.model, and the rooms host, kernel and rpc.
"""
