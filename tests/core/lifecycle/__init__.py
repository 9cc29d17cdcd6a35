"""Tests of nodemgr/core/lifecycle."""
