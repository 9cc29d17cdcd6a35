"""Tests of nodemgr/edge/clients."""
