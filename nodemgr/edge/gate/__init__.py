"""The device gate of containers: eBPF programs at their cgroups, and the state files of the hook.

May import: nodemgr.core.views, and the rooms host and kernel.
"""
