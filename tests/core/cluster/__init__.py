"""Tests of nodemgr/core/sharing."""
