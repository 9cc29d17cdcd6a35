"""How a command line reaches the manager: which run directory, which environment, which socket.

Standard library only, Python 3.8 and later, and as little of that as possible: a user waits for
every import. May import nothing of `nodemgr`, and no verb.
"""
