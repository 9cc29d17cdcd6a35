"""Tests of nodemgr/edge/containers."""
