"""TensorFlow: the graph of a training step, which is traced and never run.

May import: tensorflow (each module of this room is imported after it), client_plugin.prediction.
"""
