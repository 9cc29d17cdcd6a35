"""The page process, which has no rights: HTTP, server-sent events, its channel to the manager.

May import: the room host.
"""
