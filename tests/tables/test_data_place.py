"""Places for data files: durable when closed, moved once, also when that is repeated."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tiermq.errors import BadOption, StagingLost
from tiermq.tables.data_place import DataPlace


def write(place: DataPlace, name: str, data: bytes = b"data") -> None:
    with place.create(name) as stream:
        stream.write(data)


def test_a_path_and_its_url_are_the_same_place(tmp_path: Path) -> None:
    assert DataPlace.of(str(tmp_path)) == DataPlace.of(tmp_path.as_uri()) == DataPlace.of(f"{tmp_path.as_uri()}/")
    assert DataPlace.of("s3://bucket/a/b/").url == "s3://bucket/a/b"
    assert DataPlace.of("s3://bucket").path == "bucket"
    assert pickle.loads(pickle.dumps(DataPlace.of("s3://bucket/x"))).sibling("_bad").url == "s3://bucket/x_bad"


@pytest.mark.parametrize(
    "text", ["ftp://host/x", "s3:///x", "file://host/x", "s3://user:secret@bucket/x", "s3://b/x?y=1"]
)
def test_what_is_no_place_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(BadOption) as error:
        DataPlace.of(text)
    assert "secret" not in str(error.value)


def test_a_file_is_listed_with_its_size_moved_and_moved_again_to_no_effect(tmp_path: Path) -> None:
    place = DataPlace.of(str(tmp_path / "t"))
    write(place, "staging/a.parquet")
    assert [(file.name, file.size) for file in place.files("staging")] == [("staging/a.parquet", 4)]
    for _ in range(2):
        place.move("staging/a.parquet", place.sibling("_bad"), "a.parquet")
    assert place.files("staging") == []
    assert (tmp_path / "t_bad" / "a.parquet").read_bytes() == b"data"


def test_a_file_that_is_nowhere_cannot_be_moved(tmp_path: Path) -> None:
    place = DataPlace.of(str(tmp_path))
    with pytest.raises(StagingLost, match="found neither"):
        place.move("a", place, "b")


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    place = DataPlace.of(str(tmp_path))

    def fail() -> None:
        with place.create("a") as stream:
            stream.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert place.files() == []


def test_removing_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    place = DataPlace.of(str(tmp_path)).child("folder")
    write(place, "a")
    place.remove("a")
    place.remove("a")
    assert place.files() == []
