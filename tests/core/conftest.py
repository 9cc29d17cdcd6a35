"""Failures within the tests' world are shown as those in tests are."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.core.world")
