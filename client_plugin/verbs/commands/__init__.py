"""One module a verb, imported when the verb is called; its VERB is the table of its options.

May import: client_plugin.ways, prediction, elastic, and the other rooms of client_plugin.verbs.
"""
