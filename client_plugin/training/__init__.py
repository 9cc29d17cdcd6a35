"""Elastic training inside the user's program: resizes at step boundaries without a restart.

Standard library only at import, Python 3.8 and later. The plan of samples is pure. May import:
client_plugin.messages and client_plugin.stderr, by relative names alone: the package is loaded
under several names. The rooms below it need a framework and are imported after it.
"""
