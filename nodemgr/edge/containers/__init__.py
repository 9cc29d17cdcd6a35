"""Environments in containers: CDI files, the mounted client, directories and sockets.

May import: nodemgr.core (model, state, views), and the rooms host, kernel, clients and gate.
"""
