"""Who still uses a file, and when it may go."""

from __future__ import annotations

import pytest

from tiermq.errors import IllegalTransition
from tiermq.files.references import References, ReferenceState


def test_a_file_without_holders_drains_at_the_first_shutdown():
    references = References()
    assert references.shutdown(now_ms=0, interval_ms=1000) is True
    assert (references.state, references.count) == (ReferenceState.DRAINED, 0)
    assert references.hold() is False
    assert references.pin() is False


def test_a_held_file_drains_with_its_last_release():
    references = References()
    assert references.hold()
    assert references.shutdown(now_ms=0, interval_ms=1000) is False
    assert references.state is ReferenceState.DRAINING
    assert references.hold() is False
    assert references.pin() is True
    assert references.release() is False
    assert references.release() is True
    assert references.state is ReferenceState.DRAINED


def test_the_first_shutdown_never_forces_and_a_later_one_forces_after_the_interval():
    references = References()
    references.hold()
    references.shutdown(now_ms=5000, interval_ms=0)
    assert references.state is ReferenceState.DRAINING
    references.shutdown(now_ms=5999, interval_ms=1000)
    assert references.state is ReferenceState.DRAINING
    references.shutdown(now_ms=6000, interval_ms=1000)
    assert references.state is ReferenceState.FORCED
    assert references.release() is True
    assert references.state is ReferenceState.DRAINED


@pytest.mark.parametrize("shut_down_first", [False, True])
def test_a_release_too_many_is_refused(shut_down_first):
    references = References()
    references.hold()
    if shut_down_first:
        references.shutdown(0, 0)
    references.release()
    with pytest.raises(IllegalTransition, match="expected a reference to release"):
        references.release()
