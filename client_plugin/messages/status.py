"""The warnings below the tables of `nodemgr status`, `top`, `queue` and `wait`."""

from __future__ import annotations

from .form import Message, Notice

# -- in place of a table without a row --

NO_QUOTA_YET = Notice("no environment has a quota yet (nodemgr quota set ENV --gpus N)")
OF_ALL_TASKS = Message("{table} is a table of all tasks of the node", "leave {option} out")
NO_GPU = Notice("there is no GPU")
NOTHING_WAITS = Notice("nothing waits")
MORE_WAIT = Notice("and {more} more: nodemgr queue")
