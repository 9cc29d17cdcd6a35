"""Tests of nodemgr/edge/forecast."""
