"""Tests of nodemgr/edge/host."""
