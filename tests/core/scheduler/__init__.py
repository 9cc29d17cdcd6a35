"""Tests of nodemgr/core/scheduler."""
