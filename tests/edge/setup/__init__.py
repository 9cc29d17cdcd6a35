"""Tests of nodemgr/edge/setup."""
