"""Predictions: the memory and the time that a training needs, before it runs on a GPU.

Standard library only at import, Python 3.8 and later. The decisions are pure functions on plain
numbers. May import: client_plugin.messages, by relative names alone: the package is loaded under
several names.
"""
