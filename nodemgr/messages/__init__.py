"""The tables of the manager's messages, beside those of the client.

Each module is a table: its constants are the rows. May import: client_plugin.messages.form.
"""
