"""The protocol's messages: the compiled description is what protoc makes of the text, and has a pool of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from grpc_tools import protoc

from tiermq.grpc import messages
from tiermq.grpc.messages import METHODS, POOL, message_class

HOME = Path(messages.__file__).parent


def test_the_compiled_description_is_that_of_the_text(tmp_path: Path) -> None:
    made = tmp_path / "service.binpb"
    words = ["protoc", f"-I{HOME}", "--include_imports", f"--descriptor_set_out={made}", f"{HOME}/service.proto"]
    known = Path(protoc.__file__).parent / "_proto"
    assert protoc.main([*words[:2], f"-I{known}", *words[2:]]) == 0
    assert made.read_bytes() == (HOME / "service.binpb").read_bytes()


def test_the_service_has_every_call_of_the_protocol() -> None:
    assert len(METHODS) == 17
    fields = message_class("SystemProperties").DESCRIPTOR.fields_by_name
    assert {name: fields[name].number for name in ("tag", "receipt_handle", "trace_context", "priority")} == {
        "tag": 1, "receipt_handle": 12, "trace_context": 18, "priority": 22,
    }  # fmt: skip


def test_the_messages_are_not_in_the_pool_that_other_libraries_use() -> None:
    assert message_class("Message").DESCRIPTOR.file.pool is POOL
    assert POOL is not descriptor_pool.Default()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("apache.rocketmq.v2.Message")
