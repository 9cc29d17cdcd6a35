"""Elastic training with PyTorch: its tensors, random numbers, process groups and checkpoints.

May import: torch (each module of this room is imported after it), client_plugin.training.
"""
