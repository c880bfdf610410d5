"""When a manifest is written."""

from __future__ import annotations

import pytest

from tiermq.tier.metadata.manifest import ManifestCause, ManifestPolicy

POLICY = ManifestPolicy(interval_ms=1000)


@pytest.mark.parametrize("cause", [cause for cause in ManifestCause if cause is not ManifestCause.COMMIT])
def test_what_changes_the_shape_of_a_queue_is_written_at_once(cause: ManifestCause) -> None:
    assert POLICY.is_due({cause}, last_written_ms=5000, now_ms=5000)
    assert POLICY.is_due({ManifestCause.COMMIT, cause}, last_written_ms=5000, now_ms=5000)


@pytest.mark.parametrize(("now_ms", "due"), [(5000, False), (5999, False), (6000, True), (9000, True)])
def test_growth_is_written_once_per_interval(now_ms: int, due: bool) -> None:
    assert POLICY.is_due({ManifestCause.COMMIT}, last_written_ms=5000, now_ms=now_ms) is due
    assert POLICY.due_at_ms({ManifestCause.COMMIT}, 5000) == 6000


def test_the_first_commit_of_a_process_is_written_at_once() -> None:
    assert POLICY.is_due({ManifestCause.COMMIT}, last_written_ms=None, now_ms=0)


def test_a_queue_to_which_nothing_happened_is_never_due() -> None:
    assert not POLICY.is_due(set(), last_written_ms=None, now_ms=10**15)
    assert POLICY.due_at_ms(set(), 5) is None
