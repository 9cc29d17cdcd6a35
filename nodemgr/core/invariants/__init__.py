"""Conditions that hold after every step, counted again from the rows.

May import: nodemgr.core (model, state, scheduler, manager).
"""
