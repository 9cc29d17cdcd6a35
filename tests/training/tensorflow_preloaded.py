"""Preloaded by the server that forks workers: TensorFlow, and the library's part for it."""

from __future__ import annotations

from tests.training import tensorflow_programs

tensorflow_programs.load()
