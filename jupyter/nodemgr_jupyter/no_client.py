"""The texts of a server without a client, in which no table can be imported.

Made by `python -m nodemgr.cli.presentation.generated_messages`. Not to be edited.
"""

CELL_WITHOUT_CLIENT = "GPU: no nodemgr"
NO_CLIENT = (
    "nodemgr is not installed in the Python of this Jupyter server (%(error)s): insta"
    "ll it there, and restart the server"
)
