"""JSON as RocketMQ's brokers write it: the keys of a map may be integers without quotes.

    {"offsetTable":{"orders@group":{0:7,1:9}}}

`consumerOffset.json` and `delayOffset.json` look like that. Quoted and unquoted keys read the same; everything else is
strict JSON, so a torn or foreign file is refused and never half read.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tiermq.errors import StoreDamaged

# A string is matched first and kept as it is, so that text which looks like a key inside a string stays text. One that
# does not end reaches to the end of the text, or every quote in it would be tried as the beginning of another.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|(?s:\\.))*(?:"|\\?\Z)|(?P<before>[{,]\s*)(?P<key>-?[0-9]+)(?=\s*:)')


def decode_lenient_json(data: bytes, name: str) -> Any:
    """The document in `data`. Raises StoreDamaged, naming the file, when it is none."""

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match["key"] is None else f'{match["before"]}"{match["key"]}"'

    try:
        return json.loads(_STRING_OR_KEY.sub(quoted, data.decode("utf-8")))
    except (ValueError, RecursionError) as error:  # Also what a wrong encoding raises.
        raise StoreDamaged(
            f"{name}: expected JSON, found {len(data)} bytes that are none ({error}); its .bak has the version before"
        ) from error
