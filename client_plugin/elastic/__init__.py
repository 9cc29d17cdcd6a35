"""The leader of an elastic task: one worker process per GPU, and the GPUs that come and go.

May import: nothing of this package but client_plugin.messages and the modules beside the rooms.
Standard library only, Python 3.8 and later.
"""
