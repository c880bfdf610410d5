"""How bodies are to be decoded, from what a user says."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from tiermq.errors import BadBody
from tiermq.tables.body_format import BodyFormat, decode_each, decoder_of


def test_a_schema_is_a_text_or_the_file_that_has_it(tmp_path: Path) -> None:
    file = tmp_path / "s.ddl"
    file.write_text("id bigint")
    assert BodyFormat.of("json", str(file)) == BodyFormat.of("json", "id bigint") == BodyFormat.of("json", b"id bigint")


def test_a_format_travels_and_names_its_columns_with_their_prefix() -> None:
    body = pickle.loads(pickle.dumps(BodyFormat.of("json", "id bigint", prefix="b_")))
    assert body.columns == pa.schema([("b_id", pa.int64())])
    assert decoder_of(body) is decoder_of(body)


@pytest.mark.parametrize(
    ("kind", "schema", "reported"),
    [
        ("xml", "", "found 'xml'"),
        ("protobuf", "x", "name of the message"),
        ("json", "id", "expected a type"),
        ("avro", "no", "expected an Avro schema"),
    ],
)
def test_what_cannot_be_decoded_by_is_reported_at_once(kind: str, schema: str, reported: str) -> None:
    with pytest.raises(BadBody, match=reported):
        BodyFormat.of(kind, schema)
    with pytest.raises(BadBody, match="found no file 'nowhere'"):
        BodyFormat.of("protobuf", "nowhere", message="a.B")


def test_a_value_that_arrow_refuses_is_one_bad_row_and_not_a_bad_batch() -> None:
    values = {b"a": 1, b"b": 1 << 70, b"c": 3}
    schema = pa.schema([("n", pa.int64())])
    found = decode_each(pa.array(list(values)), schema, lambda body: {"n": values[body]})
    assert found.columns[0].to_pylist() == [1, None, 3]
    assert found.reasons is not None
    assert [reason is None for reason in found.reasons] == [True, False, True]
