"""Valid messages for hypothesis: hosts, property strings and whole records of every shape."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tiermq.message import RecordVersion, encode_record

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
PORTS = st.integers(0, 65535)
V4_HOSTS = st.builds("{}:{}".format, st.ip_addresses(v=4), PORTS)
V6_HOSTS = st.builds("[{}]:{}".format, st.ip_addresses(v=6), PORTS)
HOSTS = V4_HOSTS | V6_HOSTS

PROPERTY_TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(PROPERTY_TEXT, PROPERTY_TEXT, max_size=8)
TOPICS = st.text(st.sampled_from("abcXYZ019_-%|"), min_size=1, max_size=200) | st.text(
    st.characters(codec="utf-8"), max_size=60
)


@st.composite
def record_fields(draw: st.DrawFn, *, crc_property: bool | None = None) -> dict[str, Any]:
    """Keyword arguments of `encode_record`."""
    topic = draw(TOPICS)
    fields: dict[str, Any] = {
        "topic": topic,
        "body": draw(st.binary(max_size=2000)),
        "queue_id": draw(I32),
        "flag": draw(I32),
        "queue_offset": draw(I64),
        "physical_offset": draw(I64),
        "sys_flag": draw(I32),
        "born_timestamp_ms": draw(I64),
        "born_host": draw(HOSTS),
        "store_timestamp_ms": draw(I64),
        "store_host": draw(HOSTS),
        "reconsume_times": draw(I32),
        "prepared_transaction_offset": draw(I64),
        "properties": draw(PROPERTIES),
        "crc_property": draw(st.booleans()) if crc_property is None else crc_property,
    }
    if draw(st.booleans()):
        fields["version"] = RecordVersion.V2
    return fields


def records(*, crc_property: bool | None = None) -> st.SearchStrategy[bytes]:
    """Whole valid records."""
    return record_fields(crc_property=crc_property).map(lambda fields: encode_record(**fields))
