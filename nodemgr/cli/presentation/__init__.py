"""The group of all verbs, their help, and the options that several of them share.

May import: client_plugin, nodemgr.paths, nodemgr.cli.users.
"""
