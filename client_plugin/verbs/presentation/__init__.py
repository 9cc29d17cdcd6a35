"""Output for people: tables, examples for the help.

May import: client_plugin.ways.
"""
