"""The decisions, pure: `manager.step(state, event, now_ns)`.

Imports nothing outside this package but the standard library and client_plugin.messages.form.
"""
