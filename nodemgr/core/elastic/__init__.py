"""Elastic tasks: which GPUs they are offered and asked to leave, and their words about them.

May import: nodemgr.core.model, nodemgr.core.placement, nodemgr.core.state,
nodemgr.core.scheduler, nodemgr.core.lifecycle.
"""
