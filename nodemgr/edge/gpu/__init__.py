"""GPUs by NVML: inventory and health, usage per process, context estimates, the driver's own
limits.

May import: nodemgr.core (model, state), and the rooms host, kernel and ledger.
"""
