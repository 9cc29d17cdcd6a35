"""The head of a cluster as a program: its store, its loop, its verbs.

The decisions are core/cluster's, the way to the nodes is edge/links. It shares no process with a
node's manager, and knows none of its parts that decide or start jobs.

May import: core.model, core.state, core.cluster, core.views, edge.api (arguments, questions),
edge.clients, edge.host, edge.kernel, edge.links, edge.rpc, edge.store.
"""
