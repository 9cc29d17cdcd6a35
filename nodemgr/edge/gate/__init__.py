"""The device gate of containers: eBPF programs, cgroup v1 rules, the state files of the runtime's
hook.

May import: nodemgr.core.views, and the rooms host and kernel.
"""
