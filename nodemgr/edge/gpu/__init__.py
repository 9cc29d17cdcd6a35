"""GPUs by NVML: inventory, health, use by process, context estimates, the driver's limits.

May import: nodemgr.core (model, state), and the rooms host, kernel and ledger.
"""
