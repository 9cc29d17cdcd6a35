"""Environments as containers see them: CDI files, the mounted client, the environments' directories
and sockets.

May import: nodemgr.core (model, state, views), and the rooms host, kernel, clients and gate.
"""
