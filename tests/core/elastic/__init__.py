"""Tests of nodemgr/core/elastic."""
