"""Facts from the kernel about processes: identity, control groups, namespaces, containers, device
nodes.

May import: nodemgr.core.model, nodemgr.paths.
"""
