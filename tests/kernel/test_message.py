"""What comes out of a put: PutResult and PutResults."""

from __future__ import annotations

from types import ModuleType

import pytest

from kernel.kernel_world import KERNELS, World, values_of
from tiermq.status import PutStatus

pytestmark = pytest.mark.parametrize("kernel", KERNELS)
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def test_a_result_of_a_stored_message(kernel: ModuleType) -> None:
    result = kernel.PutResult(PutStatus.PUT_OK, HOST, 1024, 7, 99, 100, 3)
    assert (result.ok, result.end_offset, result.count) == (True, 1124, 3)
    assert result.message_id == "7F00000100002A9F0000000000000400"
    marked = result.with_status(PutStatus.FLUSH_DISK_TIMEOUT)
    assert (marked.ok, marked.physical_offset, marked.message_id) == (False, 1024, result.message_id)


def test_a_result_of_a_refused_message(kernel: ModuleType) -> None:
    result = kernel.PutResult(PutStatus.MESSAGE_ILLEGAL)
    assert (result.ok, result.physical_offset, result.queue_offset, result.size, result.message_id) == (
        False, -1, -1, 0, None,
    )  # fmt: skip
    with pytest.raises(AttributeError):
        result.status = PutStatus.PUT_OK


def test_results_that_were_all_refused(kernel: ModuleType) -> None:
    results = kernel.PutResults.refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, 3)
    assert ([result.status.name for result in results], len(results)) == (["PROPERTIES_SIZE_EXCEEDED"] * 3, 3)
    assert (results.all_ok, results.end_offset, sorted(results.others_by_index)) == (False, -1, [0, 1, 2])


def test_results_can_be_marked_without_changing_the_first_ones(kernel: ModuleType) -> None:
    world = World(kernel)
    results = world.appender.put_many([kernel.Message("T", b"x")] * 2)
    marked = results.with_status(PutStatus.FLUSH_DISK_TIMEOUT)
    assert [result.status for result in marked] == [PutStatus.FLUSH_DISK_TIMEOUT] * 2
    assert results.all_ok
    assert [values_of(result)[2:8] for result in marked] == [values_of(result)[2:8] for result in results]
    assert len(marked.others_by_index) == 2
