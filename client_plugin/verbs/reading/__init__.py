"""The manager's views as verbs read them: warnings of a status, a job's log, the views of `top`.

May import: client_plugin.ways, client_plugin.verbs.picture, client_plugin.verbs.presentation.
"""
