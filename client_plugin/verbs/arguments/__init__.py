"""The command line of a verb: the parser, kinds of values, lines of a file of jobs.

May import: client_plugin.ways, client_plugin.verbs.presentation.
"""
