"""Tests of core/placement."""
