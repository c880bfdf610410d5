"""The pages in Chromium: our script runs, nothing violates the policy, and the map is drawn."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from console.console_world import console, orders_broker, place_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATHS = (
    "/topics",
    "/topics/orders",
    "/messages?topic=orders",
    "/message?topic=orders&queue=0&offset=3",
    "/tier",
    "/sql",
)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


def test_pages_work_in_a_browser_under_their_policy(tmp_path: Path) -> None:
    with orders_broker(tmp_path) as broker, console(place_of(tmp_path, broker), allow_changes=True) as at:
        for path in PATHS:
            done = subprocess.run(
                [
                    str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                    f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=2000", "--dump-dom",
                    f"http://127.0.0.1:{at.port}{path}",
                ],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            told = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
            assert told == [], path
            assert "<footer>" in done.stdout, path
            if path == "/topics/orders":
                assert done.stdout.count('class="where both"') == 2
            if path.startswith("/messages"):
                assert 'id="tail-button">' in done.stdout, "the script shows the button"
