"""Durable state: the SQLite database, its journal, queries of the past, the disk reserve.

May import: nodemgr.core.model, and the rooms host and kernel.
"""
