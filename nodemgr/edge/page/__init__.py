"""The page process, which has no rights: HTTP, server-sent events, its connection to the manager.

May import: the room host, and the clients' ways.
"""
