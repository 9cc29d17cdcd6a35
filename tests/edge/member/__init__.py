"""Tests of nodemgr/edge/member."""
