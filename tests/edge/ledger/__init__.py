"""Tests of nodemgr/edge/ledger."""
