"""Samples of finished tasks, the networks that they train, and what forecasts know of both.

May import: nodemgr.core (model, forecast, views), nodemgr.edge (host, store, engine).
"""
