"""Tests of nodemgr/edge/executor."""
