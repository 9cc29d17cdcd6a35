"""The users' verbs (client_plugin/verbs) as commands of the node's command line.

May import: client_plugin.
"""
