"""A person at Chromium: WebDriver's protocol over HTTP to chromedriver. Counts the clicks."""

from __future__ import annotations

import base64
import http.client
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers.chromium import Chromium

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
DESKTOP, PHONE = (1280, 900), (390, 844)
READ = "return document.body.innerText"


class Person:
    """Works with one window. What is clicked, by a mouse or a finger, is counted; typing is not."""

    def __init__(self, port: int, url: str, session: str) -> None:
        self._port = port
        self._session = session
        self.url = url.rstrip("/")
        self.clicks = 0

    def ask(self, method: str, path: str, values: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        body = None if values is None else json.dumps(values)
        connection.request(method, f"/session/{self._session}{path}", body, {"Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(found, dict) and "error" in found:
            raise AssertionError(f"{method} {path} {values}: {found['error']}: {found['message'][:500]}")
        return found

    def command(self, name: str, **values: Any) -> Any:
        """One of the browser's own protocol of tools."""
        return self.ask("POST", "/goog/cdp/execute", {"cmd": name, "params": values})

    def open(self, path: str) -> None:
        self.ask("POST", "/url", {"url": self.url + path})

    def run(self, script: str, *values: Any) -> Any:
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(values)})

    def text(self) -> str:
        return str(self.run(READ))

    def see(self, *texts: str) -> None:
        """Wait until the page shows these. Its patience is that of pytest's own limit."""
        self.wait_for(lambda: all(text in self.text() for text in texts), f"{texts}")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(600):
            if condition():
                return
            self.ask("POST", "/execute/async", {"script": "requestAnimationFrame(arguments[0])", "args": []})
        raise AssertionError(f"expected {what} at {self.at()}, found {self.text()[:1500]}")

    def find(self, selector: str, text: str = "") -> str:
        """The first element that can be seen, of a CSS selector, and with a text in it."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].find(e => e.getClientRects().length"
            " && (e.textContent.trim() === arguments[1] || e.textContent.includes(arguments[1])))"
        )
        exact = "return [...document.querySelectorAll(arguments[0])].find(e => e.getClientRects().length"
        exact += " && e.textContent.trim() === arguments[1])"
        found: list[Any] = []

        def is_there() -> bool:
            found[:] = [self.run(exact, selector, text) if text else None]
            found[:] = [found[0] or self.run(script, selector, text)]
            return bool(found[0])

        self.wait_for(is_there, f"{selector} with {text!r}")
        return str(found[0][ELEMENT])

    def at(self) -> str:
        return str(self.ask("GET", "/url")).removeprefix(self.url)

    def click(self, selector: str, text: str = "", *, agrees: bool = False) -> None:
        """Click on it, wait for the page that follows; `agrees` to the question that it asks."""
        self.clicks += 1
        while True:
            try:
                self.ask("POST", f"/element/{self.find(selector, text)}/click", {})
                break
            except AssertionError as error:
                if "stale element" not in str(error):  # A live part was replaced in between.
                    raise
        if agrees:
            self.clicks += 1
            self.ask("POST", "/alert/accept", {})

    def link(self, text: str) -> None:
        self.click("a", text)

    def button(self, text: str, *, agrees: bool = False) -> None:
        self.click("button", text, agrees=agrees)

    def type(self, label: str, text: str) -> None:
        """Into the field with a label."""
        script = (
            "const all = [...document.querySelectorAll('label')];"
            "const l = all.find(e => e.firstChild.textContent.trim() === arguments[0]);"
            "return l.control || document.getElementById(l.htmlFor)"
        )
        field = self.run(script, label)[ELEMENT]
        self.ask("POST", f"/element/{field}/clear", {})
        self.ask("POST", f"/element/{field}/value", {"text": text})

    def press(self, keys: str) -> None:
        """Keys for what has the focus; WebDriver's code points for those without a sign."""
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": pressed}]})

    def size(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def scheme(self, name: str) -> None:
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def complaints(self) -> list[str]:
        """What the browser reported: errors of scripts, and what the content security policy refused."""
        found = self.ask("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] in ("SEVERE", "WARNING")]

    def photograph(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))


@contextmanager
def person(browser: Chromium, url: str, directory: Path) -> Iterator[Person]:
    """A new browser with an empty profile, that ends with the block."""
    driver = subprocess.Popen(
        [browser.driver, "--port=0"], env=browser.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        port = 0
        for line in driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                port = int(found[1])
                break
        options = {"binary": browser.program, "args": [*FLAGS, f"--user-data-dir={directory}/profile"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "browserName": "chrome"}
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/session", json.dumps({"capabilities": {"alwaysMatch": wanted}}))
        made = json.loads(connection.getresponse().read())["value"]
        connection.close()
        assert "sessionId" in made, made
        someone = Person(port, url, made["sessionId"])
        someone.size(*DESKTOP)
        try:
            yield someone
        finally:
            someone.ask("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()
