"""Protobuf bodies to columns, by a set of descriptors (protoc --include_imports --descriptor_set_out) and a message.

Fields without presence have their default, others are null when they were not set. Enums are names; numbers that the
schema does not know stay numbers as text. google.protobuf.Timestamp is a timestamp, wrappers are their value.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tiermq.errors import BadBody
from tiermq.tables.body_format import DecodedBodies, decode_each
from tiermq.tables.ddl_schema import checked

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),  # As Spark does: it has no unsigned type.
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {f"google.protobuf.{name}Value" for name in
             ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")}  # fmt: skip


class ProtobufBodies:
    """See BodyDecoder."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        files = descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(descriptors)
        except DecodeError as error:
            raise BadBody(f"expected a set of descriptors (protoc --descriptor_set_out), found none: {error}") from None
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in files.file:
                pool.Add(file)
            found = pool.FindMessageTypeByName(message)
        except KeyError:
            there = ", ".join(
                f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type
            )
            raise BadBody(f"there is no message {message!r} in the descriptors; there are {there or 'none'}") from None
        except TypeError as error:
            raise BadBody(f"the descriptors do not fit together: {error}; use protoc --include_imports") from None
        self._class = message_factory.GetMessageClass(found)
        self.schema = checked(pa.schema(_fields(found, ())))

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        return decode_each(bodies, self.schema, self._row)

    def _row(self, body: bytes) -> dict[str, Any]:
        message = self._class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(f"no {message.DESCRIPTOR.full_name}: {error}") from None
        return _values(message)


def _fields(descriptor: Descriptor, outer: tuple[str, ...]) -> list[pa.Field]:
    if descriptor.full_name in outer:
        raise BadBody(f"message {descriptor.full_name} is recursive, which a table cannot represent")
    path = (*outer, descriptor.full_name)
    return [pa.field(field.name, _field_type(field, path)) for field in descriptor.fields]


def _field_type(field: FieldDescriptor, outer: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return pa.map_(
            pa.field("key", _one_type(key, outer), nullable=False), pa.field("value", _one_type(value, outer))
        )
    kind = _one_type(field, outer)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _one_type(field: FieldDescriptor, outer: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _TYPES[field.cpp_type]
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if field.message_type.full_name in _WRAPPERS:
        return _one_type(field.message_type.fields_by_name["value"], outer)
    return pa.struct(_fields(field.message_type, outer))


def _values(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            row[field.name] = [(key, _value(inner, value[key])) for key in value]
        elif field.is_repeated:
            row[field.name] = [_value(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = _value(field, value)
    return row


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return value.seconds * 1_000_000 + value.nanos // 1000
    if field.message_type.full_name in _WRAPPERS:
        return value.value
    return _values(value)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
