"""Facts from the kernel about processes: identity, cgroups, namespaces, device nodes.

May import: nodemgr.core.model, nodemgr.paths.
"""
