"""Memory ledgers, shared with the shims: one ledger, the registry of all, heartbeats.

May import: nodemgr.core.model and nodemgr.core.state.
"""
