"""Accounts and what they may do, read from both kinds of file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from remoting.peers import make_server, serving
from tiermq.clock import ManualClock
from tiermq.errors import BadConfig, RequestRefused
from tiermq.kernel import SendRequest, send_answer
from tiermq.remoting.acl import Credentials
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body
from tiermq.remoting.permissions import AccessFile, AccessTable, Permission, address_matches, touched_by

TOML = """
globalWhiteRemoteAddresses = ["10.9.*.*"]
[[accounts]]
accessKey = "user"
secretKey = "secret"
whiteRemoteAddress = "10.8.0.1"
defaultTopicPerm = "DENY"
defaultGroupPerm = "SUB"
topicPerms = ["orders=PUB|SUB", "news=SUB", "closed=DENY"]
groupPerms = ["hidden=DENY"]
[[accounts]]
accessKey = "root"
secretKey = "topsecret"
admin = true
"""
YAML = """
# as RocketMQ ships it
globalWhiteRemoteAddresses:
- 10.9.*.*
accounts:
  - accessKey: user
    secretKey: 'secret'
    whiteRemoteAddress: 10.8.0.1
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - orders=PUB|SUB
      - news=SUB
      - closed=DENY
    groupPerms:
      - hidden=DENY
  - accessKey: root
    secretKey: topsecret
    admin: true
"""
SEND = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
USER = Credentials("user", "secret")
HOST = "127.0.0.1"


@pytest.fixture(params=["acl.toml", "plain_acl.yml"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> AccessTable:
    path = tmp_path / request.param
    path.write_text(TOML if path.suffix == ".toml" else YAML)
    return AccessTable.load(path)


def refused(
    table: AccessTable, command: RemotingCommand, credentials: Credentials = USER, host: str = HOST
) -> str | None:
    credentials.sign(command)
    try:
        table.check(command, host)
    except RequestRefused as error:
        return str(error) if error.code == 16 else "another code"
    return None


def heartbeat(group: str, topic: str) -> RemotingCommand:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic}, {"topic": f"%RETRY%{group}"}]}
    return RemotingCommand(RequestCode.HEART_BEAT, body=encode_body({"consumerDataSet": [consumer]}))


def test_topics_and_groups_are_checked_by_what_is_done_to_them(table: AccessTable) -> None:
    assert refused(table, RemotingCommand(310, ext=SEND)) is None
    assert "may not PUB the topic 'news'" in str(refused(table, RemotingCommand(310, ext={**SEND, "b": "news"})))
    assert "'closed'" in str(refused(table, RemotingCommand(10, ext={"topic": "closed"})))
    assert "'other'" in str(refused(table, RemotingCommand(10, ext={"topic": "other"})))
    pull = {"topic": "news", "consumerGroup": "g"}
    assert refused(table, RemotingCommand(11, ext=pull)) is None
    assert "group 'hidden'" in str(refused(table, RemotingCommand(11, ext={**pull, "consumerGroup": "hidden"})))
    assert "'other'" in str(refused(table, RemotingCommand(361, ext={**pull, "topic": "other"})))


def test_a_retry_topic_is_its_group_s(table: AccessTable) -> None:
    assert refused(table, RemotingCommand(310, ext={**SEND, "b": "%RETRY%g"})) is None
    assert refused(table, RemotingCommand(310, ext={**SEND, "b": "%RETRY%hidden"})) is not None
    assert refused(table, RemotingCommand(36, ext={"group": "g"})) is None
    assert refused(table, RemotingCommand(36, ext={"group": "hidden"})) is not None


def test_bodies_are_looked_into(table: AccessTable) -> None:
    assert refused(table, heartbeat("g", "orders")) is None
    assert refused(table, heartbeat("hidden", "orders")) is not None
    assert refused(table, heartbeat("g", "other")) is not None
    lock = {"consumerGroup": "g", "mqSet": [{"topic": "other", "queueId": 0, "brokerName": "b"}]}
    assert refused(table, RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=encode_body(lock))) is not None


def test_batches_of_acknowledgements_are_looked_into() -> None:
    body = encode_body({"acks": [{"c": "G", "t": "T"}, {"c": "H", "t": "%RETRY%H"}]})
    assert list(touched_by(RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, body=body))) == [
        ("group", "G", Permission.SUB),
        ("topic", "T", Permission.SUB),
        ("group", "H", Permission.SUB),
        ("group", "H", Permission.SUB),
    ]


def test_administration_is_for_administrators(table: AccessTable) -> None:
    create = {"topic": "orders"}
    for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV):
        assert "administrators" in str(refused(table, RemotingCommand(code, ext=create)))
    assert "administrators" in str(refused(table, RemotingCommand(17, ext=create)))
    assert refused(table, RemotingCommand(17, ext=create), Credentials("root", "topsecret")) is None
    assert refused(table, RemotingCommand(310, ext={**SEND, "b": "closed"}), Credentials("root", "topsecret")) is None
    assert refused(table, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)) is None


def test_signatures_and_keys_must_be_right_except_from_white_addresses(table: AccessTable) -> None:
    wrong = Credentials("user", "guess")
    assert "signature" in str(refused(table, RemotingCommand(310, ext=SEND), wrong))
    assert "account" in str(refused(table, RemotingCommand(310, ext=SEND), Credentials("nobody", "x")))
    assert refused(table, RemotingCommand(310, ext=SEND), wrong, "10.8.0.1") is None
    assert refused(table, RemotingCommand(310, ext=SEND), Credentials("nobody", "x"), "10.9.3.4") is None
    changed = RemotingCommand(310, ext=SEND, body=b"one")
    USER.sign(changed)
    changed.body = b"other"
    with pytest.raises(RequestRefused):
        table.check(changed, HOST)


def test_a_server_with_accounts_serves_signed_sends_only(table: AccessTable) -> None:
    def take(connection: Connection, request: SendRequest) -> bytes:
        return send_answer(request.header_type, request.opaque, 0, 479, "ID", 0, 7, "", "R", "true")

    server = make_server(acl=table)
    server.register_send(take)
    with serving(server) as running:
        for header_type in HeaderType:
            for credentials, code in ((USER, 0), (None, 16), (Credentials("user", "guess"), 16)):
                with BlockingClient(
                    "127.0.0.1", running.port, credentials=credentials, header_type=header_type, timeout_s=60
                ) as client:
                    assert client.request(RemotingCommand(310, ext=SEND, body=b"x")).code == code


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("*", "1.2.3.4", True),
        ("10.0.0.*", "10.0.0.9", True),
        ("10.0.0.*", "10.0.1.9", False),
        ("10.0.0.5-20", "10.0.0.5", True),
        ("10.0.0.5-20", "10.0.0.21", False),
        ("1.1.1.1, 2.2.2.2", "2.2.2.2", True),
        ("::1", "::1", True),
        ("10.0.0.*", "::1", False),
        ("", "1.1.1.1", False),
    ],
)
def test_addresses(pattern: str, host: str, matches: bool) -> None:
    assert address_matches(pattern, host) is matches


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "acl.toml"
    path.write_text(TOML)
    access = AccessFile(path, manual_clock)
    command = RemotingCommand(310, ext=SEND)
    USER.sign(command)
    access.check(command, HOST)
    path.write_text("accounts = 7")
    manual_clock.advance_ms(5_000)
    with caplog.at_level(logging.ERROR):
        access.check(command, HOST)
    assert "stays in force" in caplog.text
    path.write_text(TOML.replace('secretKey = "secret"', 'secretKey = "a new secret"'))
    access.check(command, HOST)
    manual_clock.advance_ms(5_000)
    with pytest.raises(RequestRefused):
        access.check(command, HOST)
    path.unlink()
    access.reload()
    assert access.table.accounts.keys() == {"user", "root"}


@pytest.mark.parametrize(
    "text",
    [
        "accounts = 7",
        "[[accounts]]\naccessKey = 'a'",
        "nonsense",
        '[[accounts]]\naccessKey="a"\nsecretKey="b"\ntopicPerms=["x"]',
        '[[accounts]]\naccessKey="a"\nsecretKey="b"\ndefaultTopicPerm="SOME"',
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "acl.toml").write_text(text)
    with pytest.raises(BadConfig, match="acl.toml"):
        AccessTable.load(tmp_path / "acl.toml")


def test_any_is_both_and_secrets_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text('[[accounts]]\naccessKey="a"\nsecretKey="hush"\ndefaultTopicPerm="ANY"')
    (account,) = AccessTable.load(tmp_path / "acl.toml").accounts.values()
    assert account.default_topic == Permission.PUB | Permission.SUB
    assert "hush" not in repr(account)
    assert list(touched_by(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": "T"}))) == []


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, {"consumerDataSet": [7]}),
        (RequestCode.HEART_BEAT, {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": "orders"}]}),
        (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "g", "mqSet": {"topic": "orders"}}),
        (RequestCode.BATCH_ACK_MESSAGE, {"acks": 1.5}),
    ],
)
def test_a_body_that_names_its_topics_in_no_way_is_refused_in_words(code: RequestCode, body: object) -> None:
    with pytest.raises(RequestRefused, match="list of objects"):
        list(touched_by(RemotingCommand(code, body=encode_body(body))))


def test_accounts_nested_beyond_reason_are_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "acl.toml"
    path.write_text("accounts = " + "[" * 5_000)
    with pytest.raises(BadConfig, match=r"acl\.toml"):
        AccessTable.load(path)


def test_who_may_not_use_a_group_may_not_have_it_made_by_asking_for_it() -> None:
    command = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "guarded"})
    assert list(touched_by(command)) == [("group", "guarded", Permission.SUB)]


def load_yaml(directory: Path, text: str) -> AccessTable:
    (directory / "plain_acl.yml").write_text(text)
    return AccessTable.load(directory / "plain_acl.yml")


def test_yaml_may_be_written_in_any_of_its_ways(tmp_path: Path) -> None:
    assert load_yaml(tmp_path, "globalWhiteRemoteAddresses: []\naccounts: []\n").accounts == {}
    assert load_yaml(tmp_path, "{}").accounts == {}
    assert load_yaml(tmp_path, "# nothing\n").accounts == {}
    table = load_yaml(
        tmp_path,
        "--- # a document\n"
        "globalWhiteRemoteAddresses: [10.0.0.*, '10.1.0.1']\n"
        "accounts:\n"
        "- {accessKey: 0123, secretKey: &s 0b11, admin: true, topicPerms: [a=PUB, 'b=SUB']}\n"
        "- accessKey: 1e3\n"
        "  secretKey: *s\n"
        "  whiteRemoteAddress:\n",
    )
    assert table.white_addresses == ["10.0.0.*", "10.1.0.1"]
    assert {key: account.secret_key for key, account in table.accounts.items()} == {"0123": "0b11", "1e3": "0b11"}
    assert table.accounts["0123"].admin
    assert table.accounts["0123"].topics == {"a": Permission.PUB, "b": Permission.SUB}
    assert not table.accounts["1e3"].white_address


BOMB = "\n".join(
    [f"a0: &a0 [{', '.join('x' * 9)}]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
)


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "just text",
        "accounts: 7",
        "accounts:\n\t- b",
        "accounts: [",
        "accounts: *nowhere",
        "a: !!python/object/apply:os.system [echo hush]\naccounts: [7]",
        f"{BOMB}\naccounts: [{{accessKey: *a29, secretKey: hush}}]",
        f"{BOMB}\nglobalWhiteRemoteAddresses: [*a29]",
        "accounts: " + "[" * 5_000,
        "accounts:\n- accessKey: a\n  secretKey: {hush: 1}",
        "accounts:\n- accessKey: a\n  secretKey: 'hush\n",
    ],
)
def test_yaml_that_cannot_be_meant_is_refused_without_what_it_says(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfig, match=r"plain_acl\.yml") as refused:
        load_yaml(tmp_path, text)
    assert "hush" not in str(refused.value)
