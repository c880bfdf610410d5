"""NameProcessor: every request of the name server's protocol, and what answers it.

Handlers run on the loop and only look at or change the route table; those that write the file of key-value settings
run in the server's pool. What cannot be understood is answered with SYSTEM_ERROR and a remark, an unknown topic with
TOPIC_NOT_EXIST, an unknown key with QUERY_NOT_FOUND, a setting that may not be changed with NO_PERMISSION.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from dataclasses import replace
from itertools import islice

from tiermq.errors import BadConfig, RemotingError, RequestRefused
from tiermq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.route_table import (
    BROKER_TIMEOUT_MS,
    BROKER_TOPICS_MAX,
    TOPICS_AT_ONCE,
    ZONE_NAME,
    MinIdChange,
    QueueData,
    Registration,
    RouteTable,
    queues_of_topics,
)
from tiermq.namesrv.topic_config import (
    NO_VERSION,
    PERM_READ,
    PERM_WRITE,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUBSCRIBED,
    DataVersion,
    body_checksum,
    decode_register_body,
)
from tiermq.remoting.access import ADMINISTRATOR, ANY_ACCOUNT, serves
from tiermq.remoting.client import RemotingClient, parse_name_servers
from tiermq.remoting.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import decode_object, encode_body
from tiermq.remoting.limits import check_count
from tiermq.remoting.server import RemotingServer
from tiermq.settings import read_change

ROUTE_QUEUES_MAX = 1_000
"""Brokers in the route of one topic that a request names."""
NOTICE_S = 1.0
"""How long a broker that is notified is waited for: it also asks by itself, every second."""

_log = logging.getLogger(__name__)


def _registration_in(request: RemotingCommand) -> Registration:
    """In the pool, also of a short body: it may be compressed. Raises RequestRefused."""
    checksum = int_field(request, "bodyCrc32", 0)
    if checksum and checksum != body_checksum(request.body):
        raise RequestRefused(f"expected a body with the CRC {checksum}, found {body_checksum(request.body)}")
    compressed = bool_field(request, "compressed", default=False)
    body = decode_register_body(request.body, compressed=compressed, version=request.version)
    check_count("topics of a broker", body.topic_count, BROKER_TOPICS_MAX)
    broker_name = text_field(request, "brokerName")
    return Registration(
        cluster=text_field(request, "clusterName"),
        broker_name=broker_name,
        broker_id=int_field(request, "brokerId"),
        address=text_field(request, "brokerAddr"),
        ha_address=text_field(request, "haServerAddr", ""),
        topics=queues_of_topics(broker_name, body.topics),
        data_version=body.data_version,
        filter_servers=body.filter_servers,
        timeout_ms=int_field(request, "heartbeatTimeoutMillis", BROKER_TIMEOUT_MS),
        acting_master=_optional_bool(request, "enableActingMaster"),
        zone=request.ext.get(ZONE_NAME),
    )


def _optional_bool(request: RemotingCommand, name: str) -> bool | None:
    return bool_field(request, name) if name in request.ext else None


def _queues_in(request: RemotingCommand) -> list[QueueData]:
    """Raises RequestRefused."""
    queues = decode_object(request.body).get("queueDatas")
    if not text_field(request, "topic") or not isinstance(queues, list):
        raise RequestRefused("expected a topic and a route with queueDatas, found none")
    check_count("queueDatas of a topic", len(queues), ROUTE_QUEUES_MAX)
    return [QueueData.from_json(each) for each in queues]


class NameProcessor:
    """See the module. Belongs to the loop's thread, except for `kv`, which any thread may use."""

    def __init__(self, config: NameServerConfig, table: RouteTable, kv: KvConfig) -> None:
        self.config = config
        self.table = table
        self.kv = kv
        self._notices: set[asyncio.Task[None]] = set()

    def serve_at(self, server: RemotingServer) -> None:
        """Serve at `server`, and be notified when a broker's connection ends."""
        self._server = server
        server.serve(self)
        server.on_close.append(self.connection_closed)

    def connection_closed(self, connection: Connection) -> None:
        """A broker that is no longer connected is no longer there."""
        for name, address in self.table.channel_closed(connection):
            _log.warning("broker %s at %s: unregistered, since its connection ended", name, address)
        self.notify_min_ids()
        self.sweep()

    def sweep(self) -> None:
        """Forget the topics of brokers that are gone. Other requests are served in between."""
        if self.table.sweep():
            self._server.loop.call_soon(self.sweep)

    def notify_min_ids(self) -> None:
        """Let the members of sets in which a slave acts for its master know that the smallest id is another one."""
        for change in self.table.take_min_changes():
            if self.config.notify_min_broker_id_changed:
                for address in change.others:
                    notice = self._server.loop.create_task(_notify(address, change))
                    self._notices.add(notice)
                    notice.add_done_callback(self._notices.discard)

    # Brokers.

    @serves(RequestCode.REGISTER_BROKER, access=ADMINISTRATOR, large_body=True, in_pool=True, decode=_registration_in)
    def register_broker(
        self, connection: Connection, request: RemotingCommand, registration: Registration
    ) -> RemotingCommand | None:
        return self._server.in_steps(connection, request, self._registering(connection, request, registration))

    def _registering(
        self, connection: Connection, request: RemotingCommand, registration: Registration
    ) -> Generator[None, None, RemotingCommand]:
        """A table of many topics is registered in parts: other requests are served in between."""
        self.table.require_room(registration)  # For all parts: what is registered is registered whole.
        is_new = self.table.data_version(registration.cluster, registration.broker_name, registration.address) is None
        is_changed = self.table.is_changed(
            registration.cluster, registration.broker_name, registration.address, registration.data_version
        )
        rest = iter(registration.topics.items())
        first = dict(islice(rest, TOPICS_AT_ONCE))
        is_whole = len(first) == len(registration.topics)
        answer = self.table.register(replace(registration, topics=first), connection, is_whole=is_whole)
        self.notify_min_ids()
        while answer.accepted and not is_whole:
            yield
            if (registration.broker_name, registration.address) not in self.table:
                break  # It went meanwhile.
            if part := dict(islice(rest, TOPICS_AT_ONCE)):
                self.table.add_topics(registration, part, is_changed=is_changed)
            else:
                self.table.drop_missing_topics(registration)
                is_whole = True
        if not answer.accepted:
            _log.warning(
                "broker %s at %s: not registered, another address is newer",
                registration.broker_name,
                registration.address,
            )
        elif is_new:
            _log.info(
                "broker %s %d at %s: registered", registration.broker_name, registration.broker_id, registration.address
            )
        ext = {"haServerAddr": answer.ha_address, "masterAddr": answer.master_address}
        orders = self.kv.namespace(ORDER_TOPIC_CONFIG) if self.config.return_order_topic_config_to_broker else None
        return request.respond(
            ext={name: value for name, value in ext.items() if value is not None},
            body=b"" if orders is None else encode_body({"table": orders}),
        )

    @serves(RequestCode.UNREGISTER_BROKER, access=ADMINISTRATOR)
    def unregister_broker(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        text_field(request, "clusterName")
        int_field(request, "brokerId")
        name, address = text_field(request, "brokerName"), text_field(request, "brokerAddr")
        if self.table.unregister(name, address):
            _log.info("broker %s at %s: unregistered by its request", name, address)
            self.notify_min_ids()
            self.sweep()
        return request.respond()

    @serves(RequestCode.BROKER_HEARTBEAT, access=ADMINISTRATOR)
    def broker_heartbeat(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.table.heartbeat(*_who(request))
        return request.respond()

    @serves(RequestCode.QUERY_DATA_VERSION, access=ADMINISTRATOR)
    def query_data_version(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        who = _who(request)
        asked = DataVersion.from_json(decode_object(request.body)) if len(request.body) else NO_VERSION
        known = self.table.data_version(*who)
        self.table.heartbeat(*who)
        return request.respond(
            ext={"changed": str(known != asked).lower()},
            body=b"" if known is None else encode_body(known.to_json()),
        )

    @serves(RequestCode.GET_BROKER_MEMBER_GROUP, access=ANY_ACCOUNT)
    def broker_member_group(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        cluster, name = text_field(request, "clusterName"), text_field(request, "brokerName")
        broker = self.table.broker(name)
        addresses = {} if broker is None else broker.addresses
        group = {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}
        return request.respond(body=encode_body({"brokerMemberGroup": group}))

    # Routes and lists.

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC, access=ANY_ACCOUNT)
    def route_of_topic(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = text_field(request, "topic")
        route = self.table.route(topic)
        if route is None:
            return request.respond(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no route of topic {topic[:300]} is known here: no broker that is alive has registered it",
            )
        if self.config.order_message_enable:
            route = replace(route, order_conf=self.kv.get(ORDER_TOPIC_CONFIG, topic))
        standard = request.version >= VERSION_STANDARD_JSON or bool_field(
            request, "acceptStandardJsonOnly", default=False
        )
        return request.respond(body=route.encode(standard_json=standard))

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO, access=ANY_ACCOUNT, in_pool=True)
    def cluster_info(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        brokers = {broker.broker_name: broker.to_json() for broker in self.table.brokers()}
        return request.respond(
            body=encode_body({"brokerAddrTable": brokers, "clusterAddrTable": self.table.clusters()})
        )

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, access=ANY_ACCOUNT, in_pool=True)
    def all_topics(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.respond(body=encode_body({"topicList": self.table.topics()}))

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER, access=ANY_ACCOUNT, in_pool=True)
    def topics_of_cluster(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topics = self.table.topics_of_cluster(text_field(request, "cluster"))
        return request.respond(body=encode_body({"topicList": topics}))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, access=ANY_ACCOUNT, in_pool=True)
    def system_topics(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Topics that are named after clusters and brokers, and one broker to ask for further topics."""
        names = [each for cluster, brokers in self.table.clusters().items() for each in (cluster, *brokers)]
        some = next((broker.addresses[min(broker.addresses)] for broker in self.table.brokers()), None)
        return request.respond(body=encode_body({"brokerAddr": some, "topicList": list(dict.fromkeys(names))}))

    @serves(RequestCode.GET_UNIT_TOPIC_LIST, access=ANY_ACCOUNT, in_pool=True)
    def unit_topics(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.respond(body=encode_body({"topicList": self.table.topics_with_flags(SYS_FLAG_UNIT)}))

    @serves(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, access=ANY_ACCOUNT, in_pool=True)
    def unit_subscribed_topics(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topics = self.table.topics_with_flags(SYS_FLAG_UNIT_SUBSCRIBED)
        return request.respond(body=encode_body({"topicList": topics}))

    @serves(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, access=ANY_ACCOUNT, in_pool=True)
    def only_unit_subscribed_topics(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topics = self.table.topics_with_flags(SYS_FLAG_UNIT_SUBSCRIBED, lacks=SYS_FLAG_UNIT)
        return request.respond(body=encode_body({"topicList": topics}))

    # What administrators change.

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER, access=ADMINISTRATOR)
    def wipe_write_permission(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        steps = self.table.permission_steps(text_field(request, "brokerName"), clear=PERM_WRITE)
        return self._server.in_steps(connection, request, _counting(request, "wipeTopicCount", steps))

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER, access=ADMINISTRATOR)
    def add_write_permission(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        steps = self.table.permission_steps(text_field(request, "brokerName"), to=PERM_READ | PERM_WRITE)
        return self._server.in_steps(connection, request, _counting(request, "addTopicCount", steps))

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV, access=ADMINISTRATOR)
    def delete_topic(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.table.delete_topic(text_field(request, "topic"), request.ext.get("clusterName") or None)
        return request.respond()

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV, access=ADMINISTRATOR, decode=_queues_in)
    def register_topic(
        self, _connection: Connection, request: RemotingCommand, queues: list[QueueData]
    ) -> RemotingCommand:
        self.table.register_topic(text_field(request, "topic"), queues)
        return request.respond()

    # Key-value settings, and the name server's own.

    @serves(RequestCode.PUT_KV_CONFIG, access=ADMINISTRATOR, in_pool=True)
    def put_kv(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.kv.put(text_field(request, "namespace"), text_field(request, "key"), text_field(request, "value"))
        return request.respond()

    @serves(RequestCode.DELETE_KV_CONFIG, access=ADMINISTRATOR, in_pool=True)
    def delete_kv(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.kv.delete(text_field(request, "namespace"), text_field(request, "key"))
        return request.respond()

    @serves(RequestCode.GET_KV_CONFIG, access=ANY_ACCOUNT)
    def get_kv(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        namespace, key = text_field(request, "namespace"), text_field(request, "key")
        value = self.kv.get(namespace, key)
        if value is None:
            remark = f"nothing is kept under namespace {namespace[:200]}, key {key[:200]}"
            return request.respond(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.respond(ext={"value": value})

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE, access=ANY_ACCOUNT, in_pool=True)
    def kv_list(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        namespace = text_field(request, "namespace")
        found = self.kv.namespace(namespace)
        if found is None:
            return request.respond(ResponseCode.QUERY_NOT_FOUND, f"there is no namespace {namespace[:200]}")
        return request.respond(body=encode_body({"table": found}))

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG, access=ADMINISTRATOR)
    def update_config(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """In force at once and until the end of the process; the file that the settings came from is not touched."""
        try:
            entries = read_change(bytes(request.body))
            if fixed := self.config.fixed_properties(entries):
                remark = f"{', '.join(fixed)}: cannot be changed while the name server runs"
                return request.respond(ResponseCode.NO_PERMISSION, remark)
            self.config = self.config.with_properties(entries)
        except BadConfig as error:
            raise RequestRefused(f"expected settings as a properties file has them: {error}") from error
        self.table.delete_missing_topics = self.config.delete_topic_with_broker_registration
        self.table.support_acting_master = self.config.support_acting_master
        return request.respond()

    @serves(RequestCode.GET_NAMESRV_CONFIG, access=ADMINISTRATOR)
    def get_config(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.respond(body=self.config.to_properties().encode())


def _counting(
    request: RemotingCommand, field: str, steps: Generator[None, None, int]
) -> Generator[None, None, RemotingCommand]:
    count = yield from steps
    return request.respond(ext={field: str(count)})


async def _notify(address: str, change: MinIdChange) -> None:
    ext = {
        "minBrokerId": str(change.broker_id),
        "brokerName": change.broker_name,
        "minBrokerAddr": change.address,
        "offlineBrokerAddr": change.gone_address,
        "haBrokerAddr": change.gone_ha_address,
    }
    notice = RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext={k: v for k, v in ext.items() if v})
    try:
        [(host, port)] = parse_name_servers(address)
        client = await RemotingClient.connect(host, port, timeout_s=NOTICE_S)
        try:
            client.oneway(notice)
        finally:
            await client.close()
    except (BadConfig, RemotingError) as error:
        _log.info("broker at %s: not notified that %d is the smallest id now: %s", address, change.broker_id, error)


def _who(request: RemotingCommand) -> tuple[str, str, str]:
    return text_field(request, "clusterName"), text_field(request, "brokerName"), text_field(request, "brokerAddr")
