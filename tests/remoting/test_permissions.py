"""Accounts and what they may do, read from both kinds of file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from remoting.peers import make_server, serve_sends, serving
from simulation.manual_clock import ManualClock
from tiermq.errors import BadConfig, RequestRefused
from tiermq.kernel import SendRequest, send_answer
from tiermq.message.topic_name import BROKER_TOPICS
from tiermq.remoting.access import ADMINISTRATOR, ANY_ACCOUNT, Access, knows, of_group, reads, writes
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.permissions import AccessFile, AccessTable, Account, Credentials, Permission, address_matches

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


TOPIC, GROUP = reads("topic"), of_group("consumerGroup")


def refused(
    table: AccessTable,
    command: RemotingCommand,
    access: Access = ANY_ACCOUNT,
    credentials: Credentials = USER,
    host: str = HOST,
) -> str | None:
    credentials.sign(command)
    try:
        account = table.signer_of(command, host)
        if account is not None:
            access.check(account, command)
    except RequestRefused as error:
        return str(error) if error.code == 16 else "another code"
    return None


def test_topics_and_groups_are_checked_by_what_is_done_to_them(table: AccessTable) -> None:
    def sent(topic: str) -> str:
        return str(refused(table, RemotingCommand(310, ext={**SEND, "b": topic}), writes("b")))

    assert sent("orders") == "None"
    assert "may not PUB the topic 'news'" in sent("news")
    assert "'closed'" in sent("closed")
    assert "'other'" in sent("other")
    pull = {"topic": "news", "consumerGroup": "g"}
    assert refused(table, RemotingCommand(11, ext=pull), TOPIC & GROUP) is None
    hidden = RemotingCommand(11, ext={**pull, "consumerGroup": "hidden"})
    assert "group 'hidden'" in str(refused(table, hidden, TOPIC & GROUP))
    assert "'other'" in str(refused(table, RemotingCommand(361, ext={**pull, "topic": "other"}), TOPIC & GROUP))
    assert refused(table, RemotingCommand(30, ext=pull), knows("topic")) is None
    assert "PUB|SUB" in str(refused(table, RemotingCommand(30, ext={"topic": "other"}), knows("topic")))


def test_a_field_that_is_left_out_grants_nothing(table: AccessTable) -> None:
    for access in (TOPIC, GROUP, writes("b"), knows("topic")):
        assert refused(table, RemotingCommand(11), access) == "another code"


def test_a_retry_topic_is_its_group_s(table: AccessTable) -> None:
    assert refused(table, RemotingCommand(310, ext={**SEND, "b": "%RETRY%g"}), writes("b")) is None
    assert refused(table, RemotingCommand(310, ext={**SEND, "b": "%RETRY%hidden"}), writes("b")) is not None


def test_what_pop_gives_back_is_its_topic_s_and_its_group_s() -> None:
    account = Account("a", "s", default_topic=Permission.SUB, default_group=Permission.SUB)
    account.topics.update(secret=Permission.DENY)
    account.groups.update(hidden=Permission.DENY, a_secret=Permission.SUB)
    may = {name: account.may_use_topic(f"%RETRY%{name}", Permission.SUB) for name in (
        "g_orders", "g_secret", "g+secret", "hidden_orders", "hidden+orders", "a_secret"
    )}  # fmt: skip
    assert may == {
        "g_orders": True, "g_secret": False, "g+secret": False, "hidden_orders": False, "hidden+orders": False,
        "a_secret": True,
    }  # fmt: skip


def test_a_retry_topic_whose_name_has_a_denied_group_or_topic_is_not_written() -> None:
    account = Account("a", "s", default_topic=Permission.PUB | Permission.SUB, default_group=Permission.SUB)
    account.topics.update(secret=Permission.DENY, orders=Permission.PUB)
    account.groups.update(hidden=Permission.DENY, a_secret=Permission.SUB)
    names = ("g", "g_bills", "g_orders", "g_secret", "g+secret", "hidden_bills", "hidden+bills", "a_secret")
    may = {name for name in names if account.may_use_topic(f"%RETRY%{name}", Permission.PUB)}
    assert may == {"g", "g_bills", "g_orders", "a_secret"}


def test_a_retry_topic_of_another_group_is_not_reached_by_a_prefix_of_its_name() -> None:
    account = Account("a", "s", default_topic=Permission.DENY, default_group=Permission.DENY)
    account.groups.update(team=Permission.SUB)
    assert not account.may_use_topic("%RETRY%team_payments", Permission.SUB), "no SUB of a topic `payments`"
    account.topics.update(orders=Permission.SUB | Permission.PUB)
    assert account.may_use_topic("%RETRY%team_orders", Permission.SUB)
    assert not account.may_use_topic("%RETRY%team_orders", Permission.PUB), "brokers alone write POP's copies"
    assert account.may_use_topic("%RETRY%team", Permission.PUB)


def test_dead_letters_are_read_by_those_who_may_read_for_the_group() -> None:
    account = Account("a", "s", default_topic=Permission.PUB | Permission.SUB, default_group=Permission.DENY)
    account.groups.update(billing=Permission.SUB)
    account.topics.update({"%DLQ%other": Permission.SUB})
    may = [account.may_use_topic(f"%DLQ%{group}", Permission.SUB) for group in ("billing", "shipping", "other")]
    assert may == [True, False, True]


def test_a_light_queue_needs_the_permission_of_its_topic() -> None:
    everything = Permission.PUB | Permission.SUB
    account = Account("a", "s", default_topic=everything, default_group=Permission.SUB)
    account.topics.update(hidden=Permission.DENY, read=Permission.SUB)
    account.groups.update(victim=Permission.DENY)
    parents = ("open", "hidden", "read", "%RETRY%victim", "%DLQ%victim", "rmq_sys_wheel_timer")
    for wanted, may in ((Permission.SUB, {"open", "read"}), (Permission.PUB, {"open"})):
        assert {parent for parent in parents if account.may_use_topic(f"%LMQ%${parent}$x", wanted)} == may
    assert account.may_use_topic("%LMQ%hidden", Permission.SUB), "of no topic"
    closed = Account("b", "s", topics={"mine": everything})
    assert not closed.may_use_topic("%LMQ%$mine$x", Permission.SUB)


@pytest.mark.parametrize("topic", [*sorted(BROKER_TOPICS), "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"])
def test_no_default_opens_a_broker_s_own_topics(topic: str) -> None:
    everything = Permission.PUB | Permission.SUB
    account = Account("a", "s", default_topic=everything, default_group=Permission.SUB)
    assert not account.may_use_topic(topic, everything)
    account.topics[topic] = Permission.SUB
    assert account.may_use_topic(topic, Permission.SUB)


def test_administration_is_for_administrators(table: AccessTable) -> None:
    create, root = {"topic": "orders"}, Credentials("root", "topsecret")
    text = str(refused(table, RemotingCommand(17, ext=create), ADMINISTRATOR))
    assert "request 17 (UPDATE_AND_CREATE_TOPIC) is for administrators" in text
    assert refused(table, RemotingCommand(17, ext=create), ADMINISTRATOR, root) is None
    assert refused(table, RemotingCommand(310, ext={**SEND, "b": "closed"}), writes("b"), root) is None
    assert refused(table, RemotingCommand(305)) is None


def test_signatures_and_keys_must_be_right_except_from_white_addresses(table: AccessTable) -> None:
    wrong = Credentials("user", "guess")
    assert "signature" in str(refused(table, RemotingCommand(310, ext=SEND), credentials=wrong))
    assert "account" in str(refused(table, RemotingCommand(310, ext=SEND), credentials=Credentials("unknown", "x")))
    assert refused(table, RemotingCommand(310, ext=SEND), writes("b"), wrong, "10.8.0.1") is None
    assert (
        refused(table, RemotingCommand(310, ext=SEND), ADMINISTRATOR, Credentials("unknown", "x"), "10.9.3.4") is None
    )
    changed = RemotingCommand(310, ext=SEND, body=b"one")
    USER.sign(changed)
    changed.body = b"other"
    with pytest.raises(RequestRefused):
        table.signer_of(changed, HOST)


def test_an_account_s_white_address_spares_the_signature_and_not_the_permissions(table: AccessTable) -> None:
    unsigned, host = Credentials("user", "guess"), "10.8.0.1"
    closed = RemotingCommand(310, ext={**SEND, "b": "closed"})
    assert "may not PUB the topic 'closed'" in str(refused(table, closed, writes("b"), unsigned, host))
    assert "administrators" in str(refused(table, RemotingCommand(17), ADMINISTRATOR, unsigned, host))
    assert "signature" in str(refused(table, RemotingCommand(310, ext=SEND), writes("b"), unsigned, "10.8.0.2"))


def test_a_server_with_accounts_serves_signed_sends_only(table: AccessTable) -> None:
    def take(connection: Connection, request: SendRequest) -> bytes:
        return send_answer(request.header_type, request.opaque, 0, 479, "ID", 0, 7, "", "R", "true")

    server = make_server(acl=table)
    serve_sends(server, take, writes("topic"), writes("b"))
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
    access.signer_of(command, HOST)
    path.write_text("accounts = 7")
    manual_clock.advance_ms(5_000)
    with caplog.at_level(logging.ERROR):
        access.signer_of(command, HOST)
    assert "stays in force" in caplog.text
    path.write_text(TOML.replace('secretKey = "secret"', 'secretKey = "a new secret"'))
    access.signer_of(command, HOST)
    manual_clock.advance_ms(5_000)
    with pytest.raises(RequestRefused):
        access.signer_of(command, HOST)
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


ONE = 'accessKey = "a"\nsecretKey = "hush"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('globalWhiteRemoteAddresses = "10.0.0.*"', "globalWhiteRemoteAddresses: expected a list, found text: write"),
        ("accounts = 5", "accounts: expected a list, found a number: write one table for each account"),
        (f'[[accounts]]\n{ONE}topicPerms = "orders=PUB"', "account 1: topicPerms: expected a list, found text"),
        (f'[[accounts]]\n{ONE}groupPerms = "billing=SUB"', "account 1: groupPerms: expected a list, found text"),
        (f'[[accounts]]\n{ONE}topicPerm = ["orders=DENY"]', "unknown key 'topicPerm': did you mean topicPerms?"),
        (f"[[accounts]]\n{ONE}zzz = 1", "unknown key 'zzz': expected one of accessKey"),
        (f"globalWhiteRemoteAddress = []\n[[accounts]]\n{ONE}", "did you mean globalWhiteRemoteAddresses?"),
        ('[[accounts]]\naccessKey = ""\nsecretKey = "hush"', "accessKey: expected text, found none"),
        ('[[accounts]]\naccessKey = "a"\nsecretKey = " "', "secretKey: expected text, found none"),
        ('[[accounts]]\naccessKey = "a"', "secretKey: expected text, found none"),
        (f'[[accounts]]\n{ONE}topicPerms = ["t=DENY", "t = PUB"]', "topicPerms: expected each name once, found 't'"),
        (f'[[accounts]]\n{ONE}groupPerms = ["t=DENY", "t=SUB"]', "groupPerms: expected each name once, found 't'"),
        (f'[[accounts]]\n{ONE}topicPerms = ["secret.*=DENY"]', "topicPerms: the topic 'secret.*' contains illegal"),
        (f'[[accounts]]\n{ONE}topicPerms = ["t=DENY|PUB"]', "topicPerms: expected DENY, PUB, SUB"),
        (f"[[accounts]]\n{ONE}[[accounts]]\n{ONE}", "account 2: expected a unique accessKey, found 'a' again"),
        (f'[[accounts]]\n{ONE}admin = "yes"', "admin: expected true or false, found 'yes'"),
        (f'[[accounts]]\n{ONE}whiteRemoteAddress = ["10.0.0.1"]', "whiteRemoteAddress: expected text, found a list"),
    ],
)
def test_what_could_open_more_than_was_meant_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "acl.toml").write_text(text)
    with pytest.raises(BadConfig, match=r"acl\.toml: ") as refused:
        AccessTable.load(tmp_path / "acl.toml")
    assert problem in str(refused.value)
    assert "hush" not in str(refused.value)


def test_any_is_both_and_secrets_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "acl.toml").write_text('[[accounts]]\naccessKey="a"\nsecretKey="hush"\ndefaultTopicPerm="ANY"')
    (account,) = AccessTable.load(tmp_path / "acl.toml").accounts.values()
    assert account.default_topic == Permission.PUB | Permission.SUB
    assert "hush" not in repr(account)


def test_accounts_nested_beyond_reason_are_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "acl.toml"
    path.write_text("accounts = " + "[" * 5_000)
    with pytest.raises(BadConfig, match=r"acl\.toml"):
        AccessTable.load(path)


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


def test_rocketmq_s_own_file_is_read_with_its_version_and_empty_lists(tmp_path: Path) -> None:
    table = load_yaml(
        tmp_path,
        "globalWhiteRemoteAddresses:\n"
        "accounts:\n- {accessKey: RocketMQ, secretKey: 12345678, whiteRemoteAddress: , admin: , topicPerms: }\n"
        "dataVersion:\n- {counter: 3, timestamp: 1718000000000}\n",
    )
    assert (table.white_addresses, list(table.accounts)) == ([], ["RocketMQ"])
    assert not table.accounts["RocketMQ"].admin


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("globalWhiteRemoteAddresses: 10.0.0.*", "globalWhiteRemoteAddresses: expected a list"),
        ("accounts:\n- accessKey: a\n  secretKey: b\n  admin: false\n  admin: true", "found one twice in the map"),
        ("accounts:\n- accessKey: a\n  secretKey:\n", "secretKey: expected text, found none"),
    ],
)
def test_yaml_that_could_open_more_than_was_meant_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        load_yaml(tmp_path, text)


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
def test_yaml_that_cannot_be_meant_is_refused_without_what_it_reports(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfig, match=r"plain_acl\.yml") as refused:
        load_yaml(tmp_path, text)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accounts: [\n  }", "expected YAML, found an error in line 2"),
        ("- one\n- two\n", "expected names and values, found a list"),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadConfig) as refused:
        load_yaml(tmp_path, text)
    assert str(refused.value) == f"{tmp_path}/plain_acl.yml: {said}"
