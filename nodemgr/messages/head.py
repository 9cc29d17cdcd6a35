"""Messages of a cluster's head: its store, its nodes, its verbs."""

from __future__ import annotations

from client_plugin.messages.form import Message, Notice, Part

STORE_FAILS = Message(
    "the head's store cannot be written ({fault})",
    "free the disk of its directory; until then it takes no order and nodes say all again",
)
NODE_DRAINED = Message(
    "{node} is drained ({why})", "nodemgr node resume {node} when jobs may run there again"
)
PAYLOAD_GONE = Message(
    "the store has no command of {job}", "cancel {job} and submit it again", code="store"
)
PAYLOAD_TOO_LONG = Message("{job} cannot be sent to its node ({error})", "cancel {job}")
STORE_IS_COPY = Message(
    "{node} knows a number that this head has not given: the head's store is an older copy, and it"
    " gives no job",
    "stop the head, run nodemgr head restore, and start it again",
)
NOT_IN_CLUSTER = Message(
    "the cluster has no job {job}", "nodemgr queue and nodemgr history list jobs", code="not_found"
)
NO_SUCH_NODE = Message(
    "{node} is no node of this cluster", "nodemgr node list names them", code="not_found"
)
LATER_HERE = Message(
    "the cluster's queue takes no {what} yet",
    "submit it on one node with --here",
    code="refused",
)
ADMINS_OF_CLUSTER = Message(
    "{verb} is an order of administrators of the cluster",
    "give it as root on a node, or on the head's machine",
    code="forbidden",
)
NODE_SILENT = Message(
    "{node} does not answer", "try again when nodemgr node list shows it up", code="busy"
)
NODE_HOLDS = Message(
    "{node} has {count} jobs of the cluster",
    "nodemgr node drain {node} and wait for them, or, where it is gone, nodemgr node lost {node}",
    code="refused",
)
HEAD_LISTENS = Notice("head {head} (generation {generation}) is ready: nodes reach it at {address}")
HEAD_LISTENS_NOWHERE = Message(
    "head {head} has no address, so no node can reach it",
    "name one with nodemgr head setup --address HOST:PORT",
)
ENV_REFUSED = Message("{node} does not take the quota of {env}: {why}")
NODE_JOINED = Notice("{node} has joined the cluster")
BAD_FRAME = Message(
    "a message of {node} has no {field} of the right form, and is left out",
    "upgrade the head first, then {node}",
)
NOT_CLUSTER_JOB = Part("must be a job of the cluster, e.g. c17")
NOT_CLUSTER_JOBS = Part("must be a list of at most {limit} jobs of the cluster")
NAME_OR_ADDRESS = Message(
    "a head's name or address is none",
    "name it as an environment, and an address such as 10.0.0.5:7470",
    code="usage",
)
SERVICE_FAILED = Message(
    "the service of the head does not start ({error})",
    "see journalctl -u nodemgr-head, then run nodemgr head setup again",
)
NO_COPY = Message("{file} cannot be made ({error})", "name a new file, as the head's user")
