"""read_broker_state: a broker's own tables over the wire, of TierMQ and of RocketMQ alike.

    state = await read_broker_state(cluster, "10.0.0.7:10911")        {"topics": b'{"dataVersion":…', …}

The requests are those with which RocketMQ's slaves follow their master; accounts must be an administrator's. Request
modes and filters have no such request in RocketMQ 4.9, and are not read.
Cost: five requests, and one more for each further page of topics or groups.
"""

from __future__ import annotations

from tiermq.client.cluster_client import ClusterClient
from tiermq.client.table_pages import ask_table
from tiermq.errors import BadConfig, RemotingError
from tiermq.remoting.codes import RequestCode
from tiermq.settings import read_properties
from tiermq.tier.metadata.broker_state import DELAY_OFFSETS, GROUPS, OFFSETS, SETTINGS, TOPICS, encode_settings

REQUESTS = {
    TOPICS.name: RequestCode.GET_ALL_TOPIC_CONFIG,
    GROUPS.name: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    OFFSETS.name: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DELAY_OFFSETS.name: RequestCode.GET_ALL_DELAY_OFFSET,
}


async def read_broker_state(cluster: ClusterClient, address: str) -> dict[str, bytes]:
    """The tables of the broker at the address, for `BrokerStateWriter`; settings without accounts and secrets.

    Raises RemotingError.
    """
    found = {}
    for name, code in REQUESTS.items():
        if body := await ask_table(
            cluster, address, code
        ):  # RocketMQ has no delay offsets before the first delayed message.
            found[name] = body
    body = bytes((await cluster.ask(address, RequestCode.GET_BROKER_CONFIG)).body)
    try:
        found[SETTINGS.name] = encode_settings(read_properties(body.decode()))
    except (UnicodeError, BadConfig) as error:
        raise RemotingError(
            f"{address}: expected the broker's settings, found some that cannot be read: {error}"
        ) from error
    return found
