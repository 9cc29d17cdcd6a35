"""Conditions that hold after every step of the core, counted again from the rows."""
