"""The manager's surroundings: settings, installation, self-checks, the simulated node.

May import: nodemgr.core (model, views), and the rooms host, store, clients, gpu, gate
and executor.
"""
