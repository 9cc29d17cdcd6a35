"""Elastic training with TensorFlow: its variables, random numbers and checkpoints.

May import: tensorflow and numpy (each module of this room is imported after them),
client_plugin.training.
"""
