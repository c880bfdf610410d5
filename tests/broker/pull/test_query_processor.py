"""Messages by key and by place, over the wire."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, bodies_of, messages_of, put, running
from present import present
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.message.ids import decode_message_id, encode_message_id
from tiermq.message.java_hash import java_hash
from tiermq.message.record import encode_record
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_body
from tiermq.remoting.permissions import AccessTable, Credentials

ALWAYS: dict[str, Any] = {"beginTimestamp": 0, "endTimestamp": 2**63 - 1}


def test_messages_are_found_by_their_keys_and_by_their_unique_key(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", keys=["one", "two"], properties={"UNIQ_KEY": "U1"})
        put(broker, "b", keys=["two"], queue_id=1)
        query = RequestCode.QUERY_MESSAGE
        answer = peer.ask(query, topic="T", key="two", maxNum=10, **ALWAYS)
        assert (answer.code, bodies_of(answer)) == (0, ["a", "b"])
        assert int(answer.ext["indexLastUpdateTimestamp"]) > 0
        assert int(answer.ext["indexLastUpdatePhyoffset"]) > 0
        assert bodies_of(peer.ask(query, topic="T", key="two", maxNum=1, **ALWAYS)) == ["b"]
        unique: dict[str, Any] = {"_UNIQUE_KEY_QUERY": "true", **ALWAYS}
        assert bodies_of(peer.ask(query, topic="T", key="U1", maxNum=0, **unique)) == ["a"]
        missing = peer.ask(query, topic="T", key="three", maxNum=10, **ALWAYS)
        assert (missing.code, missing.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
        assert "indexLastUpdateTimestamp" in missing.ext


def test_a_query_keeps_to_its_time(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        put(broker, "early", keys=["k"])
        manual_clock.advance_ms(10_000)
        begin = manual_clock.now_ms() - 5_000
        put(broker, "late", keys=["k"])
        answer = peer.ask(12, topic="T", key="k", maxNum=10, beginTimestamp=begin, endTimestamp=begin + 10_000)
        assert bodies_of(answer) == ["late"]


def test_a_message_is_found_by_its_id(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", "b")
        peer.join()
        second = messages_of(peer.pull(1))[0]
        offset = decode_message_id(second.message_id).physical_offset
        answer = peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
        assert (answer.code, messages_of(answer)) == (0, [second])


@pytest.mark.parametrize("code", [33, 36, 309])
def test_bytes_of_a_body_that_look_like_a_record_are_none(tmp_path: Path, code: int) -> None:
    """Nor does the answer say what is there: neither bytes nor checksums."""
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "secret" * 100)
        peer.join()

        def forged(place: int) -> bytes:
            return encode_record(topic="T", body=b"forged", physical_offset=place, queue_offset=0)

        local = broker.parts.local
        inside = local.max_physical_offset + len(encode_record(topic="T", body=b"")) - len("T") - 3
        assert local.put(Message("T", forged(inside))).ok
        local.dispatch_now()
        assert local.message_at(inside) is not None, "it looks like one"
        end = local.max_physical_offset
        for offset in (inside, *range(end)):
            place = {"msgId": encode_message_id("127.0.0.1:1", offset)} if code == 309 else {"offset": offset}
            if offset in (0, local.physical_offset_of("T", 0, 1)):
                continue
            answer = peer.ask(code, group="G", consumerGroup="G", clientId="c1", delayLevel=0, **place)
            assert (answer.code, bytes(answer.body)) == (1, b"")
            assert str(answer.remark).rstrip("0123456789ABCDEF") in {
                "can not find message by the offset, ",
                "look message by offset failed, ",
                "no message with the id ",
            }
        assert local.max_physical_offset == end


def test_the_subscription_of_a_group_is_notified_to_those_who_may_use_it(tmp_path: Path) -> None:
    asked = {"topic": "T", "queueId": 0, "index": 0, "count": 1, "consumerGroup": "G"}
    accounts = tmp_path / "acl.toml"
    accounts.write_text(
        '[[accounts]]\naccessKey = "reader"\nsecretKey = "long"\ntopicPerms = ["T=SUB"]\ngroupPerms = ["mine=SUB"]\n'
    )
    with running(tmp_path / "store", acl=AccessTable.load(accounts)) as broker:
        put(broker, "a")
        signer = Credentials("reader", "long")
        with BlockingClient("127.0.0.1", broker.port, credentials=signer, timeout_s=60) as reader:

            def ask(**changes: object) -> RemotingCommand:
                fields = {name: str(value) for name, value in {**asked, **changes}.items()}
                return reader.request(RemotingCommand(RequestCode.QUERY_CONSUME_QUEUE, ext=fields))

            assert (ask().code, bytes(ask().body)) == (ResponseCode.NO_PERMISSION, b"")
            assert ask(consumerGroup="mine").code == ask(consumerGroup="").code == ResponseCode.SUCCESS


def test_a_place_without_a_message_is_an_error(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a")
        for offset in (-1, 10**9):
            answer = peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")
        assert broker.parts.server.handler_errors == 0


def test_the_middle_of_a_message_is_no_message(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a" * 100)
        assert peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=7).code == ResponseCode.SYSTEM_ERROR


def test_many_large_messages_fit_a_frame_the_newest_of_them(tmp_path: Path) -> None:
    store = {"mapped_file_size_commit_log": 64 * 1024 * 1024}
    with running(tmp_path, store=store) as broker, Peer(broker) as peer:
        put(broker, *(f"{number}" * 3_000_000 for number in range(8)), keys=["k"])
        answer = peer.ask(RequestCode.QUERY_MESSAGE, topic="T", key="k", maxNum=32, **ALWAYS)
        assert [body[0] for body in bodies_of(answer)] == ["3", "4", "5", "6", "7"]


def test_a_key_that_is_not_found_in_an_incomplete_index_is_an_error_and_not_a_no(tmp_path: Path) -> None:
    small = {"tiered_store_index_file_max_hash_slot_num": 64, "tiered_store_index_file_max_index_num": 500}
    store = {"tier": (tmp_path / "tier").as_uri(), "tiered_storage_level": "FORCE", **small}
    with running(tmp_path / "store", store=store) as broker, Peer(broker) as peer:
        put(broker, "a", keys=["k"])
        assert present(broker.parts.tiered).flush_to_tier()
        assert bodies_of(peer.ask(12, topic="T", key="k", maxNum=10, **ALWAYS)) == ["a"]
        assert peer.ask(12, topic="T", key="none", maxNum=10, **ALWAYS).code == ResponseCode.QUERY_NOT_FOUND
        index = present(present(broker.parts.tiered).tier.index)
        index.seal()
        while not index.counts.uploaded:
            index.run_once()
    # RocketMQ's index: a file without a companion, and nothing local. It drops keys, so its "no" counts for nothing.
    shutil.rmtree(tmp_path / "store" / "tiered_index_file")
    for companion in (tmp_path / "tier").glob("*/b/rmq_sys_INDEX/0/INDEX/*.tiermq.json"):
        companion.unlink()
    with running(tmp_path / "store", store=store) as broker, Peer(broker) as peer:
        present(present(broker.parts.tiered).tier.index).run_once()
        found = peer.ask(12, topic="T", key="k", maxNum=10, **ALWAYS)
        assert (found.code, bodies_of(found), found.ext["indexComplete"]) == (0, ["a"], "false")
        assert "not complete" in (found.remark or "")
        missing = peer.ask(12, topic="T", key="none", maxNum=10, **ALWAYS)
        assert (missing.code, missing.body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert "the key index of topic T is not complete" in (missing.remark or "")
        assert broker.parts.server.handler_errors == 0


def test_the_units_of_a_consume_queue_are_reported(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", "b", "c", tags="TagA")
        code = RequestCode.QUERY_CONSUME_QUEUE
        asked: dict[str, Any] = {"topic": "T", "queueId": 0, "index": 1, "count": 5}
        reported = decode_body(peer.ask(code, **asked, consumerGroup="G").body)
        assert (reported["minQueueIndex"], reported["maxQueueIndex"]) == (0, 3)
        assert reported["filterData"] == "G@T is not online!"
        peer.join("G", "TagA")
        online = decode_body(peer.ask(code, **asked, consumerGroup="G").body)
        assert (online["subscriptionData"]["subString"], online["filterData"]) == ("TagA", "TagA")
        pulled = messages_of(peer.pull(1))
        expected = [(each.physical_offset, each.size, java_hash("TagA")) for each in pulled]
        assert [
            (unit["physicOffset"], unit["physicSize"], unit["tagsCode"]) for unit in reported["queueData"]
        ] == expected
        assert len(decode_body(peer.ask(code, **{**asked, "count": 1}).body)["queueData"]) == 1
        behind = peer.ask(code, **{**asked, "index": 3})
        assert (behind.code, behind.remark) == (0, "Index 3 of 0@T is not exist!")
        assert decode_body(behind.body)["maxQueueIndex"] == 3
        nowhere = peer.ask(code, **{**asked, "queueId": 9})
        assert (nowhere.code, nowhere.remark) == (ResponseCode.SYSTEM_ERROR, "9@T is not exist!")
