"""Statuses of the store as codes of the wire."""

from __future__ import annotations

import pytest

from tiermq.broker.put_answers import STORED, answers_with, code_of, refusal_of
from tiermq.errors import RequestRefused
from tiermq.kernel import FrameReader, SendRequest, send_answer
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.receiving import command_of
from tiermq.status import PutStatus

ROCKETMQ_S = {
    PutStatus.PUT_OK: 0,
    PutStatus.FLUSH_DISK_TIMEOUT: 10,
    PutStatus.SLAVE_NOT_AVAILABLE: 11,
    PutStatus.FLUSH_SLAVE_TIMEOUT: 12,
    PutStatus.MESSAGE_ILLEGAL: 13,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: 13,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: 13,
    PutStatus.SERVICE_NOT_AVAILABLE: 14,
    PutStatus.OS_PAGE_CACHE_BUSY: 2,
}


@pytest.mark.parametrize("status", list(PutStatus))
def test_every_status_has_rocketmq_s_code_and_all_but_success_a_remark(status: PutStatus) -> None:
    code, remark = code_of(status)
    assert code == ROCKETMQ_S.get(status, ResponseCode.SYSTEM_ERROR)
    assert (remark is None) == (status is PutStatus.PUT_OK)


def test_clients_get_a_place_with_the_codes_on_which_they_expect_one() -> None:
    assert {code_of(status)[0] for status in STORED} == {0, 10, 11, 12}


def test_a_refusal_answers_in_the_request_s_header_type_and_to_its_opaque() -> None:
    request = SendRequest(
        310, 42, producer_group="g", topic="t", default_topic="", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_ms=0, flag=0, header_type=1,
    )  # fmt: skip
    answer = refusal_of(request, RequestRefused("no", ResponseCode.NO_PERMISSION))
    assert (answer.opaque, answer.header_type, answer.is_response) == (42, 1, True)
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "no")


@pytest.mark.parametrize("header_type", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_answers_that_are_changed_to_another_status_are_those_that_were_made_with_it(
    header_type: int, count: int
) -> None:
    def joined(status: PutStatus) -> bytes:
        code, remark = code_of(status)
        return b"".join(
            send_answer(header_type, opaque, code, 477, f"ID{opaque}", 3, 70 + opaque, "K", "R", "true", remark)
            for opaque in range(count)
        )

    changed, made = (
        frames_of(each)
        for each in (
            answers_with(joined(PutStatus.PUT_OK), PutStatus.FLUSH_DISK_TIMEOUT),
            joined(PutStatus.FLUSH_DISK_TIMEOUT),
        )
    )
    assert changed == made
    assert len(made) == count


def frames_of(joined: bytes) -> list[tuple[object, ...]]:
    """What stands in frames that lie side by side."""
    reader = FrameReader(1 << 20)
    commands = [command_of(frame) for frame in reader.feed(joined)]
    return [(each.code, each.opaque, each.flag, each.version, each.remark, each.ext) for each in commands]
