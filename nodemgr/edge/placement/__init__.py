"""Learned placement in the manager: the file of weights, and its forward pass.

May import: nodemgr.core.model, nodemgr.core.placement, nodemgr._native.
"""
