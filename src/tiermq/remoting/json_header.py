"""The JSON header. Reading is lenient, since clients in other languages write numbers and booleans; writing is not.

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON",
     "version":479}

Fields are written in alphabetical order, as Java does; a remark only if there is one.
"""

from __future__ import annotations

import json
from typing import Any

from tiermq.errors import BadFrame
from tiermq.remoting.codes import Language, language_of
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.limits import HEADER_FIELDS_MAX

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_OWN_TEXTS = 32
"""More than the names and values beside the ext fields."""


def decode_json_header(header: bytes | memoryview) -> RemotingCommand:
    """The command without its body. Raises BadFrame for what is not a header."""
    data = bytes(header)
    _check_texts(data)
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError(f"a JSON {type(fields).__name__}")
        remark = fields.get("remark")
        return RemotingCommand(
            _number(fields, "code", required=True),
            opaque=_number(fields, "opaque"),
            flag=_number(fields, "flag"),
            language=language_of(fields.get("language")),
            version=_number(fields, "version"),
            remark=None if remark is None else str(remark),
            ext=_texts(fields.get("extFields")),
            header_type=HeaderType.JSON,
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadFrame(f"expected a JSON header, found {len(header)} bytes that are none: {error}") from error


def encode_json_header(command: RemotingCommand) -> bytes:
    fields: dict[str, Any] = {
        "code": int(command.code),
        "extFields": command.ext,
        "flag": command.flag,
        "language": Language(command.language).name,
        "opaque": command.opaque,
        "remark": command.remark,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is None:
        del fields["remark"]
    if not command.ext:
        del fields["extFields"]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _check_texts(data: bytes) -> None:
    """Before it is parsed, which takes long for many fields. Raises BadFrame."""
    most = 2 * HEADER_FIELDS_MAX + _OWN_TEXTS
    if data.count(b'"') > 2 * most:
        found = data.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
        if found > most:
            raise BadFrame(f"expected a JSON header of at most {HEADER_FIELDS_MAX} fields, found {found} texts in it")


def _number(fields: dict[str, Any], name: str, *, required: bool = False) -> int:
    value = fields.get(name)
    if value is None:
        if required:
            raise ValueError(f"no {name!r}")
        return 0
    number = int(value)
    if not _INT_MIN <= number <= _INT_MAX:
        raise ValueError(f"{name!r} of {number} does not fit into 32 bits")
    return number


def _texts(fields: Any) -> dict[str, str]:
    """The ext fields as text. Numbers and booleans arrive from C++ and JavaScript; null is as good as absent."""
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise TypeError(f"extFields that are a JSON {type(fields).__name__}")
    return {name: _text(value) for name, value in fields.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, separators=(",", ":"))
