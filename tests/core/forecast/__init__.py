"""Tests of nodemgr/core/forecast."""
