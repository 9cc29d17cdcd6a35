"""The messages of a verb on its way to the manager: run directory, environment, socket, answer."""

from __future__ import annotations

from .form import Message, Notice

# -- the run directory and the environment --

CONF_UNREADABLE = Message(
    "{directory}/client.conf cannot be read ({why})", "name the directory of an environment"
)
CONTAINER_WITHOUT_ENV = Message(
    "{directory}/client.conf cannot be read: this container is in no environment",
    "start it with --device nodemgr.local/env=NAME",
)
OTHER_ENV_IN_CONTAINER = Message(
    "this container is in environment {own}, and its jobs are, too",
    "leave --env out",
)
NO_ENV_THERE = Message(
    "no environment {env!r} at {run_dir}",
    "an admin makes it with `nodemgr quota set {env} --gpus N`{meant}",
)
SEVERAL_ENVS = Message("you may enter several environments ({names})", "name one with --env")
NO_ENV_LETS_IN = Message(
    "no environment at {run_dir} lets you in, and you are no admin there",
    "ask one to name you in a quota",
)
ADMINS_ORDER = Message(
    "only root, the manager's user and the group nodemgr may give orders to the manager at"
    " {run_dir}",
    "for your own environment: nodemgr status, queue, history, report, release, doctor",
)
NO_ENV_HAS_JOB = Message(
    "{names} have no job {job!r}",
    "nodemgr queue shows what waits, nodemgr history what has ended",
)
NO_ENV_HAS_TASK = Message(
    "{names} have no record of a task {task!r}",
    "nodemgr status shows the tasks that run",
)
NO_ENV_HAS_REQUEST = Message(
    "in {names} no request {request!r} waits",
    "nodemgr status shows requests, and the tasks of those that were granted",
)

# -- the manager --

NO_MANAGER_ON = Message(
    "no manager runs on {run_dir}", "start one with nodemgr serve, or name its --run-dir"
)
MANAGER_MUTE = Message(
    "the manager on {run_dir} does not answer", "look whether it runs (nodemgr doctor)"
)
MANAGER_ENDED_EARLY = Message(
    "the manager on {run_dir} ended before it answered",
    "look whether the order was carried out (nodemgr status), and give it again",
)
CONTROL_CLOSED = Message(
    "the control socket {path} is not open to you",
    "its group may use it (usermod -aG nodemgr USER), as root may",
)
SOCKET_MUTE = Message(
    "the manager behind {path} does not answer", "its log says why; try again later"
)
SOCKET_WENT = Message(
    "the manager behind {path} went away ({why}); tasks that run go on",
    "try again, or see `nodemgr doctor`",
)
SOCKET_CLOSED = Message(
    "the manager behind {path} closed the connection",
    "its log says why; try again later",
)
SOCKET_OF_ANOTHER = Message(
    "no manager answers behind {path} (the process that answers has another version); tasks that"
    " run go on",
    "use a nodemgr of the manager's version",
)
SOCKET_WITHOUT_MANAGER = Message(
    "no manager answers behind {path} ({why}); tasks that run go on",
    "try again, or ask an admin to start it",
)
ANSWER_NOT_JSON = Message(
    "the manager's answer is no JSON",
    "use a nodemgr of the manager's version",
)
ANSWER_NOT_OBJECT = Message(
    "the manager's answer is no JSON object",
    "use a nodemgr of the manager's version",
)
REFUSED_WITHOUT_REASON = Message("the manager refused", "its log says why")
NO_FILE_LET_IN = Message(
    "the kernel lets no file into this container (SELinux or AppArmor), and a long order needs one",
    "give a shorter order, or give it on the node",
)
LONG_ORDER = Message(
    "this order has {size_bytes:d} bytes, and may have {room_bytes:d}",
    "shorten its command or its environment (env -u NAME, or env -i)",
)
TRYING_FOR = Notice("{line}; trying for {seconds:.0f} s in all (--no-wait: not at all)")
MEANWHILE = Notice("{line}; {then}")
GIVEN_UP = Notice("{line}; given up after {seconds:.0f} s")
CLIENT_NOT_LOADED = Message(
    "the client cannot be loaded into this Python ({error})", "nodemgr doctor says more"
)
NO_MANAGER_BEHIND = Message(
    "no manager answers behind {address}; tasks that run go on",
    "try again, or ask an admin to start it",
)
