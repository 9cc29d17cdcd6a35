"""Plain values: entities, events, effects, names, schema of the tables, encoding of rows.

May import: the standard library's pure modules, client_plugin.messages.form.
"""
