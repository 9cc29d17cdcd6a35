"""The tables of all messages of the client: each line that its verbs, hook and libraries print.

Standard library only, Python 3.8 and later. May import nothing else of this package, and nothing
of `nodemgr`.
"""
