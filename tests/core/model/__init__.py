"""Tests of nodemgr/core/model."""
