"""Placement on GPUs that fail: rates from recorded failures, and the orders of fresh GPUs.

May import: nodemgr.core.model.
"""
