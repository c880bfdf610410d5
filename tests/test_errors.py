"""The error tree: what a caller may catch, and by which name."""

from __future__ import annotations

import pytest

from tiermq import errors


@pytest.mark.parametrize(
    ("name", "parents"),
    [
        ("CorruptRecord", ("TierMQError",)),
        ("StoreError", ("TierMQError",)),
        ("StoreClosed", ("StoreError",)),
        ("StoreLocked", ("StoreError",)),
        ("StoreDamaged", ("StoreError",)),
        ("DiskFull", ("StoreError",)),
        ("ReadOnlyStore", ("StoreError",)),
        ("IllegalMessage", ("TierMQError", "ValueError")),
        ("BadConfig", ("TierMQError", "ValueError")),
        ("IllegalTransition", ("TierMQError",)),
    ],
)
def test_an_error_can_be_caught_by_its_parents(name: str, parents: tuple[str, ...]) -> None:
    error = getattr(errors, name)
    for parent in parents:
        assert issubclass(error, getattr(errors, parent, None) or ValueError)
    assert error.__doc__


def test_every_error_raised_on_purpose_has_one_root() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert found
    assert all(issubclass(value, errors.TierMQError) for value in found)
