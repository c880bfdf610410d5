"""What people and other programs write: filter expressions, configuration files, settings, accounts, addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.hostile.target import Target, documented
from campaign.hostile.wire_targets import JSON_WORDS
from tiermq.broker.group.assignment_processor import decode_modes
from tiermq.broker.group.consumer_offsets import decode_offsets, encode_offsets
from tiermq.broker.group.group_table import SubscriptionGroup, decode_groups, encode_groups
from tiermq.broker.pop.order_infos import decode_order_infos
from tiermq.broker.pull.sql_filter import SqlFilter
from tiermq.broker.settings_file import read_settings_file
from tiermq.broker.topic.topic_table import check_topic_name, decode_topics, encode_topics
from tiermq.errors import BadConfig, BadExpression, BadTierUrl, RequestRefused, StoreDamaged
from tiermq.message.message_filter import TagCodeFilter
from tiermq.message.properties import encode_properties
from tiermq.namesrv.kv_config import _decode as decode_kv
from tiermq.namesrv.topic_config import DataVersion, TopicConfig
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.permissions import AccessTable
from tiermq.store.delay_offsets import decode_delay_offsets
from tiermq.tier.driver import tier_url

MESSAGES = [
    encode_properties(each)
    for each in ({}, {"a": "5", "b": "x"}, {"a": "NaN", "b": ""}, {"a": "1" * 400, "region": "eu"}, {"a": "é\u2028"})
]
SQL = (
    "a > 1 AND b = 'x'", "a BETWEEN 1 AND 5 OR NOT (b IS NULL)", "region IN ('eu','us') AND a <> 3.5e2",
    "b CONTAINS 'x' -- why\n AND a >= -2", "a NOT IN ('1') /* c */ OR TRUE", "b NOT STARTSWITH 'it''s'",
)  # fmt: skip
SQL_WORDS = tuple(
    f" {word} ".encode()
    for word in (
        "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "TRUE", "CONTAINS", "ENDSWITH", "--", "/*", "*/", "''",
        "(", ")", "<>", ">=", "-", "1e99", "9223372036854775808", "a", "'x'", "AND a>1", "=1",
    )
)  # fmt: skip


def _try_sql(data: bytes) -> str:
    expression = data.decode("utf-8", "replace")
    found, said = documented(lambda: SqlFilter(expression), BadExpression)
    tags, _ = documented(lambda: TagCodeFilter(expression), BadExpression)
    if tags is not None:
        tags.matches_unit(97)
    if found is None:
        return said
    return "filter " + "".join("ny"[found.matches_properties(each)] for each in MESSAGES)


def _config(decode: Callable[[bytes], Any], *errors: type[Exception]) -> Callable[[bytes], str]:
    def attempt(data: bytes) -> str:
        found, said = documented(lambda: decode(data), *errors)
        return said or f"decoded {type(found).__name__}"

    return attempt


def _settings_attempt(path: Path) -> Callable[[bytes], str]:
    def attempt(data: bytes) -> str:
        path.write_bytes(data)
        _, said = documented(lambda: read_settings_file(path), BadConfig)
        return said.replace(str(path), "") or "settings"

    return attempt


def _accounts_attempt(path: Path) -> Callable[[bytes], str]:
    def attempt(data: bytes) -> str:
        path.write_bytes(data)
        found, said = documented(lambda: AccessTable.load(path), BadConfig)
        return said.replace(str(path), "") if found is None else f"{min(2, len(found.accounts))} accounts"

    return attempt


def _try_address(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    _, url = documented(lambda: tier_url._setting(tier_url._split(text)), BadTierUrl)
    _, servers = documented(lambda: parse_name_servers(text), BadConfig)
    _, topic = documented(lambda: check_topic_name(text), RequestRefused)
    return f"{url or 'a tier'} / {servers or 'servers'} / {topic or 'a topic'}"


TOML = b"""broker_name = "b1"
flush_disk_type = "SYNC_FLUSH"
[tier]
tier_max_bytes = 5
"""
PROPERTIES = b"brokerName=b1\nflushDiskType = ASYNC_FLUSH\n# why\nlistenPort:10911\\\n\nbad\\u00e9=1\n"
YAML = b"""globalWhiteRemoteAddresses:
- 10.0.0.*
accounts:
- accessKey: key
  secretKey: "a secret"   # kept
  admin: false
  topicPerms:
  - orders=PUB|SUB
"""
ACCOUNTS = b'globalWhiteRemoteAddresses=["1.*"]\n[[accounts]]\naccessKey="k"\nsecretKey="s"\ntopicPerms=["t=PUB"]\n'
VERSION = DataVersion(1, 1)


def _configs() -> list[Target]:
    topics = encode_topics({"orders": TopicConfig("orders", 4, 4, attributes={"+a": "b"})}, VERSION)
    groups = encode_groups({"g": SubscriptionGroup("g")}, {"g": {"T": 4}}, VERSION)
    offsets = encode_offsets({"orders@g": {0: 5, 3: 7}}, VERSION)
    orders = b'{"table":{"T@g":{"0":{"popTime":1,"i":60000,"l":1,"o":[5,1],"oc":{"6":2},"ot":{"6":9},"cm":1,"a":"x"}}}}'
    modes = b'{"messageRequestModeMap":{"T":{"g":{"mode":"POP","popShareQueueNum":1,"topic":"T","consumerGroup":"g"}}}}'
    words = (*JSON_WORDS, b'{{"a":1}:1}', b"1e999", b"dataVersion")
    refused = (RequestRefused,)
    damaged = (StoreDamaged,)
    return [
        Target("config_topics", lambda: [topics], _config(decode_topics, *refused), words),
        Target("config_groups", lambda: [groups], _config(decode_groups, *refused), words),
        Target("config_offsets", lambda: [offsets], _config(decode_offsets, *refused), words),
        Target("config_pop_order", lambda: [orders], _config(decode_order_infos, *refused), words),
        Target("config_pop_modes", lambda: [modes], _config(decode_modes, *refused), words),
        Target("config_kv", lambda: [b'{"configTable":{"n":{"k":"v"}}}'], _config(decode_kv, *refused), words),
        Target(
            "config_delay_offsets",
            lambda: [b'{"dataVersion":{"counter":3},"offsetTable":{3:7,"12":9}}'],
            _config(decode_delay_offsets, *damaged),
            (*words, b"--3", b"-3"),
        ),
    ]


def text_targets(scratch: Path) -> list[Target]:
    scratch.mkdir(parents=True, exist_ok=True)
    urls = (b"s3://bucket/prefix?region=eu", b"file:///data/tier", b"memory:", b"az://c/p", b"127.0.0.1:9876;[::1]:1")
    url_words = (b"file://", b"s3://", b"../", b"%2e%2e", b"?", b"#", b"@", b"\n", b"[", b"]", b":0", b":65536", b"//")
    return [
        Target("sql", lambda: [each.encode() for each in SQL], _try_sql, SQL_WORDS),
        *_configs(),
        Target(
            "settings_toml", lambda: [TOML], _settings_attempt(scratch / "b.toml"), (b"[", b"=", b'"""', b"nan", b"inf")
        ),
        Target(
            "settings_properties", lambda: [PROPERTIES], _settings_attempt(scratch / "b.conf"), (b"\\u", b"\\", b"=")
        ),
        Target(
            "accounts_yaml",
            lambda: [YAML, b"accounts: [{accessKey: &k a, secretKey: *k}]\n"],
            _accounts_attempt(scratch / "acl.yml"),
            (b"- ", b": ", b"  ", b"|", b"&a", b"*a", b"!!python/name:os.system", b"[", b"{", b"---", b"<<", b"? "),
        ),
        Target(
            "accounts_toml", lambda: [ACCOUNTS], _accounts_attempt(scratch / "acl.toml"), (b"[[", b"=", b"'''", b"1.*")
        ),
        Target("address", lambda: list(urls), _try_address, url_words),
    ]
