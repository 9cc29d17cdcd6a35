"""Durable state: the SQLite database, the journal that writes it, queries of the past, the disk
reserve.

May import: nodemgr.core.model, and the rooms host and kernel.
"""
