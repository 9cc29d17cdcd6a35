"""Hostile programs against root's manager: what docs/security.md says that they get, and no more.

Each row of that page names the program here (or elsewhere in tests) that tries it.
"""
