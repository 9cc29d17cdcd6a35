"""Formats of requests and answers: packets, the schema of verbs, shared buffers.

May import: nodemgr.core.model, nodemgr.paths, and the room kernel.
"""
