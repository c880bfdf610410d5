"""Asserts of the conformance suite explain themselves, though it is no test file."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tier.driver.conformance")
