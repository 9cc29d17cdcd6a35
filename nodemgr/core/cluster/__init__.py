"""The decisions of a cluster's head: which node gets which job, and what its answer makes of it.

The head knows nodes, jobs and assignments, and no GPU by its name: a node's own core chooses those.
`head.step(state, event, now_ns)` is pure, as `nodemgr.core.manager.step` is on a node.

Its modules: entities (rows, and the states of a job), events, state (tables and their sums),
orders (of people, about nodes), job_orders (about jobs), answers (of nodes: ends, silence),
draining (nodes that get no job), restoring (a store that is a copy), passes (the choice of nodes),
pilots and pool (nodes that Slurm lends), messages (what is to be said to a node; it follows from
the rows), head (one step).

Of a first form: whole GPUs, and one queue. Queues with ranks and shares of GPUs are to come onto
the same rows.

May import: nodemgr.core.model, nodemgr.core.state, nodemgr.core.scheduler.
"""
