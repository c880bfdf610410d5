"""Messages of a broker by a key, without those that only share its hash.

The index knows hashes, so an answer may hold others' messages: they are left out here, as RocketMQ's clients do.
"""

from __future__ import annotations

from collections.abc import Callable

from tiermq.client.cluster_client import ClusterClient
from tiermq.history.scan_values import EVER_MS
from tiermq.message.properties import UNIQ_KEY, get_property
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode, ResponseCode

MOST = 32


async def find_by_key(
    cluster: ClusterClient,
    address: str,
    topic: str,
    key: str,
    *,
    unique: bool = False,
    most: int = MOST,
    begin_ms: int = 0,
    end_ms: int = EVER_MS,
    on_incomplete: Callable[[str], None] = lambda _reason: None,
) -> list[StoredMessage]:
    """Messages of a topic with one of its keys, or with `unique` its unique key, as far as the broker has `most`.

    Raises RequestRefused when nothing is found and the broker's index is not complete; when something is,
    `on_incomplete` gets the broker's reason.
    """
    answer = await cluster.ask(
        address,
        RequestCode.QUERY_MESSAGE,
        expected=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        topic=topic,
        key=key,
        maxNum=most,
        beginTimestamp=begin_ms,
        endTimestamp=end_ms,
        _UNIQUE_KEY_QUERY=unique,
    )
    if answer.ext.get("indexComplete") == "false":
        on_incomplete(answer.remark or "the key index is not complete")
    found = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
    return [message for message in found if message.topic == topic and _has_key(message, key, unique)]


def _has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    if unique:
        return get_property(message.encoded_properties, UNIQ_KEY.encode()) == key.encode()
    return key in message.keys
