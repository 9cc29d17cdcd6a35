"""Facts from the kernel about processes: identity, cgroups, device nodes, host use.

May import: nodemgr.core (model, views), nodemgr.paths.
"""
