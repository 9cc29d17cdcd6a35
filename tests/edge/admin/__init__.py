"""Tests of nodemgr/edge/admin."""
