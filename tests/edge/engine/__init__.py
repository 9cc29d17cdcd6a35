"""Tests of nodemgr/edge/engine."""
