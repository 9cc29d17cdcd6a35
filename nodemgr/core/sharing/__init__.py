"""GPUs shared over time: shares that change, progress, preemption, suspension, idle tasks.

May import: nodemgr.core.model, nodemgr.core.state, nodemgr.core.scheduler, nodemgr.core.lifecycle.
"""
