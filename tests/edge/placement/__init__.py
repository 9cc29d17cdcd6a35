"""Tests of nodemgr/edge/placement."""
