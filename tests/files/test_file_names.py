"""Names of mapped files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import StoreDamaged
from tiermq.files.file_names import OFFSET_MAX, name_of_offset, offset_of_path


def test_the_second_file_of_one_gibibyte_has_rocketmqs_name():
    assert name_of_offset(1 << 30) == "00000000001073741824"


@given(st.integers(0, OFFSET_MAX))
def test_a_name_gives_its_offset_back(offset):
    assert offset_of_path(f"/any/where/{name_of_offset(offset)}") == offset


@pytest.mark.parametrize(
    "name", ["", "0", "0" * 19, "0" * 21, " " + "0" * 19, "-" + "0" * 19, "\u0660" * 20, "\u00b2" * 20, "9" * 20]
)
def test_a_name_that_is_no_offset_is_refused(name):
    with pytest.raises(StoreDamaged, match="expected a file name of 20 digits"):
        offset_of_path(f"/store/commitlog/{name}")


@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1])
def test_an_offset_that_no_file_can_have_is_refused(offset):
    with pytest.raises(ValueError, match="expected an offset between"):
        name_of_offset(offset)
