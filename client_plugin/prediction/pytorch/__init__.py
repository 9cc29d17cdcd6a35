"""PyTorch: tensors on a GPU that is not there, and a record of what a training does with them.

May import: torch (each module of this room is imported after it), client_plugin.prediction.
"""
