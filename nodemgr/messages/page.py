"""The messages of the web page itself, of which its static/messages.js is made.

The page prints a line as a sentence. Refusals come from the manager, which has its own tables.
"""

from __future__ import annotations

from client_plugin.messages.form import Message, Notice

PAGE_MANAGER_AWAY = Message(
    "the manager is away since {since}; running tasks go on",
    "this page follows when it is back",
)
PAGE_SERVER_AWAY = Message(
    "the page's server is away since {since}", "it is tried again every second"
)
PAGE_IS_LIVE = Notice("the page is live again")
PAGE_TOKEN_MISSING = Message(
    "the field for the token is empty", "paste the token that `nodemgr web token` has printed"
)
PAGE_NO_TOKEN = Message(
    "this is no token", "paste one of the form nmw-…, as `nodemgr web token` prints it"
)
PAGE_TASK_RELEASED = Notice("task {task} is released")
PAGE_WITHDRAWN = Notice("{id} is withdrawn")
PAGE_QUOTA_SET = Notice("the quota of {env} is set")
PAGE_GPUS_MISSING = Message(
    "the number of GPUs is empty", "write how many the environment may hold (0 is none)"
)
PAGE_ENV_MISSING = Message("the name is empty", "give the environment a name")
PAGE_NO_NUMBER = Message("{field}: {text} is not a number of at least 0", "write one such as 2.5")
PAGE_NO_WHOLE_NUMBER = Message(
    "{field}: {text} is not a whole number of at least 0", "write one such as 2"
)
PAGE_PAST_UNRECORDED = Notice("the use of the past is not recorded here")

# -- in place of a table without a row --

PAGE_NO_TASK = Notice("no task holds a GPU")
PAGE_NOTHING_WAITS = Notice("no request waits")
PAGE_NO_JOB_RUNS = Notice("no job runs")
PAGE_NO_JOB_ENDED = Notice("no job has ended in this time")
PAGE_NO_ENV = Notice("there is no environment yet")
PAGE_NO_LEASE = Notice("no lease in this time")
PAGE_NOTHING_FOUND = Notice("nothing here holds “{text}”")
