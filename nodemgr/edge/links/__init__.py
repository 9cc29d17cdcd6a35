"""The link between a cluster's head and its nodes, both ends: frames, keys, sessions, sockets.

May import: the room host.
"""
