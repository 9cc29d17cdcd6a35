"""Output for people: tables, units, examples for the help.

May import: client_plugin.ways.
"""
