"""A node's manager as a member of a cluster: what it reports to its head, takes from it, asks it.

May import: nodemgr.core (model, state, views), and the rooms host, rpc, links, clients, engine,
setup and api.
"""
