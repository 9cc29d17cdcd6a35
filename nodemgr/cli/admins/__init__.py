"""The administrators' verbs: one module a verb, and the modules that only these verbs need.

May import: client_plugin, nodemgr.core, nodemgr.edge, nodemgr.cli.presentation.
"""
