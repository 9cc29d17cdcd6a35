"""Tests of nodemgr/edge/gpu."""
