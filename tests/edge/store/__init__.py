"""Tests of nodemgr/edge/store."""
