"""The picture of `top` on a terminal: live by textual, once by rich.

The only room of the client that imports packages; it is imported when `top` draws.
May import: client_plugin.ways, client_plugin.verbs.picture.
"""
