"""Tests of nodemgr/core/state."""
