"""A piece of a mapped file that keeps the file alive."""

from __future__ import annotations

import pytest

from tiermq.files.selected_buffer import SelectedBuffer


def test_a_selection_is_released_once_however_often_it_is_asked():
    released = []
    selected = SelectedBuffer(100, memoryview(b"hello"), lambda: released.append(True))
    assert (selected.start_offset, selected.size, bytes(selected.data)) == (100, 5, b"hello")
    selected.release()
    selected.release()
    assert released == [True]
    with pytest.raises(ValueError, match="released"):
        bytes(selected.data)


def test_a_selection_is_released_when_its_block_ends_also_by_an_error():
    released = []
    with pytest.raises(KeyError), SelectedBuffer(0, memoryview(b""), lambda: released.append(True)):
        raise KeyError
    assert released == [True]
