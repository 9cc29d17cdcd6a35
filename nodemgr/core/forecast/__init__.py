"""Forecasts of memory, utilisation and run time: features, roofline, networks, samples, margins.

May import: nodemgr.core.model.
"""
