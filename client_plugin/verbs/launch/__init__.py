"""The start of programs: the program of a command, its surroundings, the container's runner.

May import: client_plugin.ways, client_plugin.prediction, client_plugin.verbs.presentation,
client_plugin.lease.
"""
