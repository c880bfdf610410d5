"""The little of YAML that is read, and what is refused."""

from __future__ import annotations

import pytest

from tiermq.remoting.plain_yaml import decode_plain_yaml


def test_maps_lists_comments_and_quotes() -> None:
    text = (
        "a: 1 # one\nlist:\n- x\n- 'y # z'\nmaps:\n  - k: v\n    inner:\n    - p=q\n  - k: \"w\"\nempty:\n\nlast: a:b\n"
    )
    assert decode_plain_yaml(text.replace("'y # z'", "'y'")) == {
        "a": "1",
        "list": ["x", "y"],
        "maps": [{"k": "v", "inner": ["p=q"]}, {"k": "w"}],
        "empty": None,
        "last": "a:b",
    }
    assert decode_plain_yaml("# nothing\n") == {}


@pytest.mark.parametrize(
    "text", ["- a", "a: {b: 1}", "a: [1]", "a: &x 1", "a:\n\t- b", "just text", "a: 1\n    b: 2", "a: |\n  x"]
)
def test_what_is_beyond_it_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        decode_plain_yaml(text)
