"""Whatever strangers send, others notice nothing: a real name server, attacked beside a peer that goes on using it.

After every attack the bystander is answered as before, nothing that a stranger sent was a handler's mistake
(`handler_errors` stays 0), and what strangers make the server keep is bounded.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from fuzz.damage import damaged
from remoting.peers import BIG, ECHO, RawPeer, begun_send, make_server, serving
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, body_checksum, encode_register_body
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.limits import ServerLimits
from tiermq.remoting.permissions import ACCESS_KEY, SIGNATURE, AccessTable, Credentials

MIB = 1 << 20
HERE = Path(__file__).parent
NAME_SERVER_CODES = [
    *(100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904)
]


def registration(name: str, address: str, *topics: str) -> RemotingCommand:
    body = encode_register_body([TopicConfig(topic, 4, 4) for topic in topics], DataVersion(1, 1))
    who = {"brokerName": name, "brokerAddr": address, "clusterName": name, "brokerId": "0", "haServerAddr": "h:1"}
    checksum = {"bodyCrc32": str(body_checksum(body)), "compressed": "false"}
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext=who | checksum, body=body)


def route(topic: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})


@dataclass
class Attacked:
    """A name server, and the bystander: a broker that is registered and asks for its own route."""

    server: NameServer
    bystander: BlockingClient
    expected: bytes

    def goes_on(self) -> bool:
        answer = self.bystander.request(route("orders"))
        return bytes(answer.body) == self.expected and self.server.server.handler_errors == 0

    def attack(self, data: bytes) -> bytes:
        """Send, say that there is no more, and take whatever is answered until the server closes."""
        with RawPeer(self.server.port) as peer, contextlib.suppress(ConnectionError):
            peer.socket.sendall(data)
            peer.socket.shutdown(socket.SHUT_WR)
            answers = bytearray()
            while piece := peer.socket.recv(MIB):
                answers += piece
            return bytes(answers)
        return b""


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
    with NameServer(config) as server, BlockingClient("127.0.0.1", server.port, timeout_s=60) as bystander:
        known = registration("broker-a", "10.0.0.1:1", "orders", "other")
        known.ext["heartbeatTimeoutMillis"] = str(86_400_000)  # It is said once, however long the attacks take.
        assert bystander.request(known).code == 0
        yield Attacked(server, bystander, bytes(bystander.request(route("orders")).body))


VALID = st.sampled_from(
    [
        registration("stranger", "10.0.0.2:1", "theirs", "more"),
        route("theirs"),
        RemotingCommand(RequestCode.PUT_KV_CONFIG, ext={"namespace": "n", "key": "k", "value": "v"}),
        RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=false\n"),
        RemotingCommand(RequestCode.QUERY_DATA_VERSION, ext={"clusterName": "c", "brokerName": "b", "brokerAddr": "a"}),
        RemotingCommand(10, ext={"producerGroup": "g", "topic": "t", "queueId": "0"}, body=b"hello"),
        RemotingCommand(310, ext=dict.fromkeys("abcdefgh", "1"), body=b"hello"),
    ]
)
FRAMES = st.builds(
    lambda commands, header_type: b"".join(
        encode_frame(RemotingCommand(each.code, ext=each.ext, body=each.body, opaque=9, header_type=header_type))
        for each in commands
    ),
    st.lists(VALID, min_size=1, max_size=3),
    st.sampled_from(HeaderType),
)


@given(damaged(FRAMES))
def test_damaged_and_truncated_frames_are_answered_or_closed_and_nothing_else(
    attacked: Attacked, frames: tuple[bytes, bytes]
) -> None:
    attacked.attack(frames[1])
    assert attacked.goes_on()


FIELDS = ["brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr", "topic", "namespace", "key", "value",
          "cluster", "bodyCrc32", "compressed", "heartbeatTimeoutMillis", "enableActingMaster", "epoch"]  # fmt: skip
VALUES = st.sampled_from(["", "stranger", "0", "-1", "true", str(1 << 70), "1.5", "%", "\x00", "ü" * 300]) | st.text()
BODIES = (
    st.sampled_from([b"", b"{", b"[]", b"null", b'{"a":', b"\xff\xfe", b"a=b\n", b'{"queueDatas":[7]}']) | st.binary()
)


@examples(80)
@given(st.sampled_from(NAME_SERVER_CODES), st.dictionaries(st.sampled_from(FIELDS), VALUES), BODIES)
def test_missing_and_senseless_fields_are_refused_in_words(
    attacked: Attacked, code: int, ext: dict[str, str], body: bytes
) -> None:
    with RawPeer(attacked.server.port) as peer:
        peer.send(RemotingCommand(code, ext=ext, body=body, opaque=77))
        answer = peer.read()
    assert answer.opaque == 77
    assert answer.code == 0 or answer.remark
    assert attacked.goes_on()


@given(st.integers(-(1 << 15), (1 << 15) - 1).filter(lambda code: code not in NAME_SERVER_CODES))
def test_unknown_codes_are_not_supported(attacked: Attacked, code: int) -> None:
    answer = attacked.bystander.request(RemotingCommand(code))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert attacked.goes_on()


@pytest.mark.parametrize("length", [-1, 0, 3, 16 * MIB + 1, (1 << 31) - 1, -(1 << 31)])
def test_a_frame_of_an_impossible_length_is_closed_at_its_first_bytes(attacked: Attacked, length: int) -> None:
    with RawPeer(attacked.server.port) as peer:
        peer.socket.sendall(struct.pack(">iI", length, 4))
        assert peer.is_closed_by_server()
    assert attacked.goes_on()


def test_other_protocols_are_closed(attacked: Attacked) -> None:
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ):
        assert attacked.attack(data) == b""
        assert attacked.goes_on()


def test_announced_bytes_cost_nothing_before_they_come(attacked: Attacked) -> None:
    sent, count = 16 * 1024, 200
    before = memory_bytes()
    with contextlib.ExitStack() as peers:
        for _ in range(count):
            peer = peers.enter_context(RawPeer(attacked.server.port))
            peer.socket.sendall(begun_send(15 * MIB, sent))
        while attacked.server.server._partial_bytes < count * sent:
            assert attacked.goes_on()
        grown = memory_bytes() - before
    assert grown < 256 * MIB, f"{count} peers announced {count * 15} MiB and sent {count * sent} bytes"


def test_a_flood_of_connections_leaves_nothing_behind(attacked: Attacked) -> None:
    for turn in range(1_000):
        with socket.create_connection(("127.0.0.1", attacked.server.port)) as peer:
            if turn % 3 == 0:
                peer.sendall(encode_frame(route("orders"))[: turn % 40])
            elif turn % 3 == 1:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Ends with a reset.
    assert attacked.goes_on()
    while len(attacked.server.server.connections) > 1:
        assert attacked.goes_on()


def test_readers_that_never_read_hold_a_bounded_share_each() -> None:
    limits = ServerLimits(write_high_bytes=MIB, write_bytes_max=16 * MIB)
    asked, peers_count = 40, 20
    with serving(make_server(limits=limits)) as running, contextlib.ExitStack() as peers:
        request = encode_frame(RemotingCommand(BIG, ext={"bytes": str(MIB)}))
        for _ in range(peers_count):
            peer = peers.enter_context(RawPeer(running.port, receive_bytes=4096))
            peer.socket.sendall(request * asked)
        with BlockingClient("127.0.0.1", running.port, timeout_s=60) as bystander:
            assert bystander.request(RemotingCommand(ECHO)).code == 0
            held = [0]
            while sum(map(bool, held)) < peers_count:
                assert bystander.request(RemotingCommand(ECHO)).code == 0
                held = running.thread.call(lambda: [each.unsent_bytes for each in running.server.connections])
                assert len(held) == peers_count + 1, "none was closed for asking too much"
        assert max(held) <= 3 * MIB, f"each of {peers_count} asked for {asked} MiB and has taken nothing"


ACCOUNTS = """
[[accounts]]
accessKey = "user"
secretKey = "secret"
admin = true
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("acl") / "acl.toml"
    path.write_text(ACCOUNTS)
    with serving(make_server(acl=AccessTable.load(path))) as running:
        yield running.port


@given(
    st.sampled_from(["no key", "no signature", "other signature", "other secret", "other field", "other body"]),
    st.text(max_size=40),
    st.sampled_from(HeaderType),
)
def test_a_wrong_signature_is_refused_and_a_right_one_is_served(
    guarded: int, wrong: str, text: str, header_type: HeaderType
) -> None:
    command = RemotingCommand(ECHO, ext={"field": "value"}, body=b"body", header_type=header_type)
    Credentials("user", f"x{text}" if wrong == "other secret" else "secret").sign(command)
    assert wrong != "other secret" or f"x{text}" != "secret"
    if wrong == "no key":
        del command.ext[ACCESS_KEY]
    elif wrong == "no signature":
        del command.ext[SIGNATURE]
    elif wrong == "other signature":
        command.ext[SIGNATURE] = f"{text}!"
    elif wrong == "other field":
        command.ext["field"] = f"{text}-"
    elif wrong == "other body":
        command.body = b"x" + text.encode()
    with RawPeer(guarded) as peer:
        peer.send(command)
        assert peer.read().code == ResponseCode.NO_PERMISSION
    with BlockingClient("127.0.0.1", guarded, credentials=Credentials("user", "secret"), timeout_s=60) as client:
        assert client.request(RemotingCommand(ECHO, body=b"body")).code == 0


def memory_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_ten_thousand_idle_peers_are_held_while_others_are_served() -> None:
    count = 10_000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < count + 500:
        pytest.skip(f"{count} peers need {count + 500} descriptors: raise ulimit -n")
    server = make_server()
    with serving(server) as running, BlockingClient("127.0.0.1", running.port, timeout_s=60) as bystander:
        before = memory_bytes()
        words = [sys.executable, str(HERE / "idle_peers.py"), str(running.port), str(count)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peers:
            assert peers.stdin is not None
            assert peers.stdout is not None
            try:
                assert peers.stdout.readline() == "ready\n"
                while len(server.connections) < count + 1:  # The last ones may still be in the line.
                    assert bystander.request(RemotingCommand(ECHO)).code == 0
                each_bytes = (memory_bytes() - before) / count
                peers.stdin.write(encode_frame(RemotingCommand(ECHO)).hex() + "\n")
                peers.stdin.flush()
                assert peers.stdout.readline() == "served\n"
            finally:
                peers.kill()
        print(f"{each_bytes:.0f} bytes for each idle connection")
        assert each_bytes < 20_000, "a peer that says nothing costs less than 20 kB"
        assert bystander.request(RemotingCommand(ECHO)).code == 0
