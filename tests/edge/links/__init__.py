"""Tests of nodemgr/edge/links."""
