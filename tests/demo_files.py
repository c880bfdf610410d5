"""docs/demo.html and docs/demo.svg from the page of one run:

tiermq demo --page page.html && python3 tests/demo_files.py page.html
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PICTURE = DOCS / "demo.html", DOCS / "demo.svg"
_FLOW = re.compile(r'<svg [^>]*aria-label="Message flow">\n(.*?)</svg>', re.DOTALL)
_TEMPORARY = re.compile(r"file://\S*?/tiermq-demo-\w+/")


def written(page: str) -> tuple[str, str]:
    """The page without the directories of its machine, and the picture with its numbers."""
    page = _TEMPORARY.sub("file:///demo/", page)
    flow = _FLOW.search(page)
    assert flow is not None
    # The picture stands alone: it keeps its own styles and ground.
    head, _, _ = PICTURE.read_text(encoding="utf-8").partition("<defs>")
    return page, f"{head}{flow[1]}</svg>\n"


if __name__ == "__main__":
    page, picture = written(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    PICTURE.write_text(picture, encoding="utf-8")
