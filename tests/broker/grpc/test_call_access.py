"""Who may make which call of gRPC is declared in one table, and what is not declared is not served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.grpc.grpc_peer import STREAMS
from broker.grpc.test_grpc_access import CONSUMER, OTHER, PRODUCER, guarded, peer_of
from present import present
from tiermq.broker.broker import Broker
from tiermq.broker.grpc import grpc_access
from tiermq.broker.grpc.grpc_access import ACCESS
from tiermq.grpc.messages import METHODS, Code, request_class

__all__ = ["guarded"]
TEXT = (Path(__file__).parents[3] / "docs" / "grpc.md").read_text(encoding="utf-8")
BY_FIELDS = [name for name, access in ACCESS.items() if access.check is not grpc_access._OWN.check]


def request_of(method: str) -> Any:
    """One of topic T and group G, as far as the call has them."""
    made = request_class(method)()
    fields = made.DESCRIPTOR.fields_by_name
    if "messages" in fields:
        made.messages.add(body=b"x").topic.name = "T"
    if "message_queue" in fields:
        made.message_queue.topic.name = "T"
    for name, value in (("topic", "T"), ("group", "G")):
        if name in fields:
            getattr(made, name).name = value
    return made


def test_every_handler_has_a_declaration_and_every_declaration_a_handler(guarded: Broker) -> None:
    assert {"Telemetry", *present(guarded.grpc)._handlers} == ACCESS.keys()
    assert ACCESS.keys() <= set(METHODS)


@pytest.mark.parametrize("method", BY_FIELDS)
def test_a_handler_is_not_reached_without_what_its_call_declares(guarded: Broker, method: str) -> None:
    reached: list[str] = []

    async def handler(ask: Any) -> Any:
        reached.append(ask.caller.account.access_key)
        return None if method in STREAMS else present(guarded.grpc)._answers[method]()

    present(guarded.grpc)._handlers[method] = handler
    for account in (OTHER, PRODUCER, CONSUMER):
        with peer_of(guarded, account) as peer:
            before = len(reached)
            answer = peer.call(method, request_of(method))
            found = answer[0] if method in STREAMS and answer else answer
            assert len(reached) > before or found.status.code == Code.FORBIDDEN
    text = ACCESS[method].text
    assert reached == [name for name, right in (("producer", "PUB"), ("consumer", "SUB")) if right in text]


def test_a_call_without_a_declaration_is_not_served(guarded: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with peer_of(guarded, CONSUMER) as peer:
        assert peer.call("GetOffset", request_of("GetOffset")).status.code == Code.OK
        monkeypatch.delitem(ACCESS, "GetOffset")
        with pytest.raises(grpc.RpcError) as found:
            peer.call("GetOffset", request_of("GetOffset"))
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_table_of_the_document_is_what_is_declared() -> None:
    rows = [f"| `{method}` | {access.text} |" for method, access in ACCESS.items()]
    head = "| call | who may make it |\n|---|---|\n"
    assert head in TEXT
    shown = TEXT.partition(head)[2].partition("\n\n")[0].splitlines()
    assert sorted(shown) == sorted(rows), "docs/grpc.md: expected this table:\n" + head + "\n".join(rows)
