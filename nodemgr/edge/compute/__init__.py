"""Launch gates, shared with the shims: the pages of each GPU, the registry of all, their audit.

May import: nodemgr.core.model, nodemgr.core.state, nodemgr.core.views.
"""
