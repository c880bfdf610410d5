"""Languages by number and by name."""

from __future__ import annotations

from tiermq.remoting.codes import TRUNCATED_CODES, Language, RequestCode, language_of


def test_a_language_is_known_by_number_and_by_name_and_else_is_other() -> None:
    assert language_of(0) is Language.JAVA
    assert language_of("GO") is Language.GO
    assert language_of(99) is Language.OTHER
    assert language_of(None) is Language.OTHER


def test_no_truncated_code_hides_another() -> None:
    assert not TRUNCATED_CODES.keys() & {int(code) for code in RequestCode if code <= 0x7FFF}
