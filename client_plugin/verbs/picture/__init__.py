"""The picture of `top`: views of the node in, lines of styled text and orders of keys out.

No terminal, socket or package is needed here.
May import: client_plugin.verbs.presentation.
"""
