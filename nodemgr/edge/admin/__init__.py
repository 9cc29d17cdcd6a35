"""The control plane on ZeroMQ: the manager's server and the client of an administrator's program.

May import: the rooms host, store and rpc.
"""
