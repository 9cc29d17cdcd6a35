"""GPUs by NVML: inventory, use by process, events, sensors, context estimates, the driver's limits.

May import: nodemgr.core (model, placement, state, views), and the rooms host, kernel and ledger.
"""
