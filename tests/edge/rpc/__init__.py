"""Tests of nodemgr/edge/api."""
