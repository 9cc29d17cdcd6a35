"""Tests of nodemgr/edge/kernel."""
