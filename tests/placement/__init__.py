"""Tests of nodemgr/placement."""
