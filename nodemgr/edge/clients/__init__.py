"""Transports of clients: UNIX sockets and UDP, sessions, rate limits, descriptor filter.

May import: nodemgr.core.model, and the rooms host, kernel and rpc.
"""
