"""Durable state: the SQLite database, its journal, queries of the past, the disk reserve.

May import: nodemgr.core (model, views), and the rooms host and kernel.
"""
