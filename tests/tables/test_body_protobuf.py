"""Protobuf bodies."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadBody
from tiermq.tables.body_protobuf import ProtobufBodies

Field = descriptor_pb2.FieldDescriptorProto


def field(name: str, number: int, kind: int, *, many: bool = False, of: str = "", optional: bool = False) -> Any:
    made = Field(name=name, number=number, type=kind, label=Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL)
    if of:
        made.type_name = of
    if optional:
        made.proto3_optional, made.oneof_index = True, 0
    return made


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    shop = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    shop.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = shop.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = shop.message_type.add(name="Line")
    line.field.append(field("sku", 1, Field.TYPE_STRING))
    order = shop.message_type.add(name="Order")
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.extend([field("key", 1, Field.TYPE_STRING), field("value", 2, Field.TYPE_INT32)])
    order.oneof_decl.add(name="_note")
    order.field.extend(
        [
            field("id", 1, Field.TYPE_UINT64),
            field("note", 2, Field.TYPE_STRING, optional=True),
            field("state", 3, Field.TYPE_ENUM, of=".shop.State"),
            field("at", 4, Field.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
            field("weight", 5, Field.TYPE_MESSAGE, of=".google.protobuf.DoubleValue"),
            field("lines", 6, Field.TYPE_MESSAGE, many=True, of=".shop.Line"),
            field("labels", 7, Field.TYPE_MESSAGE, many=True, of=".shop.Order.LabelsEntry"),
            field("raw", 8, Field.TYPE_BYTES),
        ]
    )
    loop = shop.message_type.add(name="Loop")
    loop.field.append(field("next", 1, Field.TYPE_MESSAGE, of=".shop.Loop"))
    return files


FILES = descriptors()
DECODER = ProtobufBodies(FILES.SerializeToString(), "shop.Order")


def order_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FILES.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_a_message_becomes_columns() -> None:
    order = order_class()(id=(1 << 64) - 1, state=1, labels={"x": 2}, raw=b"r")
    order.at.seconds = 1
    order.weight.value = 2.5
    order.lines.add(sku="a")
    found = DECODER.decode(pa.array([order.SerializeToString(), b""]))
    assert found.reasons is None
    full, empty = pa.table(found.columns, schema=DECODER.schema).to_pylist()
    assert full == {
        "id": Decimal((1 << 64) - 1), "note": None, "state": "PAID",
        "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
        "weight": 2.5, "lines": [{"sku": "a"}], "labels": [("x", 2)], "raw": b"r",
    }  # fmt: skip
    assert (empty["id"], empty["at"], empty["state"], empty["lines"]) == (Decimal(0), None, "NEW", [])


def test_a_number_that_the_enum_does_not_know_stays_one() -> None:
    found = DECODER.decode(pa.array([order_class()(state=9).SerializeToString()]))
    assert found.columns[2].to_pylist() == ["9"]


@given(st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes_are_a_row_or_a_reason(bodies: list[bytes]) -> None:
    found = DECODER.decode(pa.array(bodies, pa.binary()))
    assert all(len(column) == len(bodies) for column in found.columns)


def test_bytes_that_are_no_message_are_bad() -> None:
    found = DECODER.decode(pa.array([b"\xff\xff\xff"]))
    assert found.reasons is not None
    assert "no shop.Order" in str(found.reasons[0])


def test_what_is_no_set_of_descriptors_or_has_no_such_message_is_refused() -> None:
    with pytest.raises(BadBody, match="descriptor_set_out"):
        ProtobufBodies(b"\xff\xff", "shop.Order")
    with pytest.raises(BadBody, match=r"there are .*shop.Line, shop.Order"):
        ProtobufBodies(FILES.SerializeToString(), "shop.Ordr")
    with pytest.raises(BadBody, match="recursive"):
        ProtobufBodies(FILES.SerializeToString(), "shop.Loop")
    alone = descriptor_pb2.FileDescriptorSet(file=[FILES.file[2]])
    with pytest.raises(BadBody, match=r"include_imports|there is no message"):
        ProtobufBodies(alone.SerializeToString(), "shop.Order")
