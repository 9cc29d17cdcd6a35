"""Suspension: a task's device memory goes to host memory and back, by a process of its own.

May import: the rooms host and kernel.
"""
