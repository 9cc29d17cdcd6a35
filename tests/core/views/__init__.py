"""Tests of nodemgr/core/views."""
