"""GPUs by NVML: inventory, use by process, sensors, context estimates, the driver's limits.

May import: nodemgr.core (model, state, views), and the rooms host, kernel and ledger.
"""
