"""Preloaded by the server that forks workers: PyTorch, and the library's part for it."""

from __future__ import annotations

from tests.training import programs

programs.load()
