"""docs/embedded.md and docs/api.md keep their word."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import api_page
import tiermq
from servers.loopback import free_ports
from tiermq import client
from tiermq.errors import TierMQError

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "embedded.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs_in_its_order(tmp_path: Path) -> None:
    pieces = re.findall(r"^```(python|console)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    pieces = [piece for piece in pieces if "FastAPI(" not in piece[1]]  # That one is served below.
    assert len(pieces) >= 8
    ran = 0
    for language, text in pieces:
        if language == "python":
            words = [[sys.executable, "-c", text]]
            if "def test_" in text:
                (tmp_path / "test_page.py").write_text(text)
                words = [[sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", ".", "test_page.py"]]
        else:
            lines = [line.removeprefix("$ ") for line in text.splitlines()]
            words = [[sys.executable, "-m", "tiermq.cli", *shlex.split(line)[1:]] for line in lines]
        for command in words:
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            assert done.stdout
            for promised in re.findall(r"^ *print\(.*\)  # ([^…\n]+)", text, re.MULTILINE):
                assert promised in done.stdout, f"{text}\n{done.stdout}"
            ran += 1
    assert ran > len(pieces)


def test_the_web_service_puts_and_consumes(tmp_path: Path) -> None:
    [service] = [text for text in re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S) if "FastAPI(" in text]
    (tmp_path / "service.py").write_text(service)
    [port] = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "info"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert any("running on" in line for line in lines)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/mails", data=b"welcome") as answer:
            assert (answer.status, json.load(answer)) == (202, {"offset": 0})
        assert any(line == "sent welcome\n" for line in lines)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert "Traceback" not in rest
    assert not (tmp_path / "service" / "abort").exists()
    with tiermq.LocalStore.open(tmp_path / "service") as store:
        assert [message.body for message in store.read("mails")] == [b"welcome"]


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "run python3 tests/api_page.py"


def test_every_public_name_is_in_the_reference_with_a_docstring() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    public = {f"tiermq.{name}": getattr(tiermq, name) for name in tiermq.__all__}
    public |= {f"tiermq.client.{name}": getattr(client, name) for name in client.__all__}
    assert [name for name in public if f"### `{name}`" not in text] == []
    assert "See the module" not in text
    for module in api_page.OTHERS:
        package = importlib.import_module(module)
        others = {name: getattr(package, name) for name in package.__all__}
        shown = [name for name, value in others.items() if value not in public.values()]
        assert [name for name in shown if f"### `{module}.{name}`" not in text] == []
        assert all(map(inspect.getdoc, others.values())), module
    for name, value in public.items():
        assert inspect.getdoc(value), name
        is_ours = inspect.isclass(value) and value.__module__.startswith(("tiermq.embedded", "tiermq.client"))
        is_twin = name.startswith("tiermq.client.Async")
        members = vars(value).items() if is_ours and not is_twin else ()
        bare = [
            each
            for each, member in members
            if not each.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, property | classmethod))
            and not inspect.getdoc(member)
        ]
        assert bare == [], f"{name} has members without a docstring"


def test_the_client_has_the_same_members_in_both_forms() -> None:
    for name in client.__all__:
        if name.startswith("Async"):
            sync, both = getattr(client, name.removeprefix("Async")), getattr(client, name)
            missing = [each for each in vars(sync) if not each.startswith("_") and not hasattr(both, each)]
            assert set(missing) <= {"receipt"}, name  # An attribute of the transaction.


PAIRS = {
    tiermq.AsyncStore: (tiermq.LocalStore, tiermq.TieredStore),
    tiermq.AsyncConsumer: (tiermq.Consumer,),
    tiermq.AsyncStream: (tiermq.MessageStream,),
}


def test_the_store_has_the_same_members_and_parameters_in_both_forms(tmp_path: Path) -> None:
    compared = 0
    for both, forms in PAIRS.items():
        for sync in forms:
            for name in dir(sync):
                if name.startswith("_") or (sync, name) == (tiermq.LocalStore, "open"):
                    continue
                own, other = getattr(sync, name), getattr(both, name, None)
                assert other is not None, f"{both.__name__} lacks {name}"
                if inspect.isfunction(own):
                    shapes = [
                        [(each.name, each.kind, each.default) for each in inspect.signature(form).parameters.values()]
                        for form in (own, other)
                    ]
                    assert shapes[0] == shapes[1], f"{both.__name__}.{name}"
                    compared += 1
    assert compared > 40
    with tiermq.TieredStore.open(tmp_path / "s", tier=tmp_path / "t") as store:
        attributes = {name for name in (*vars(store), *vars(store.consumer("o", "g"))) if not name.startswith("_")}
    attributes -= set(dir(tiermq.LocalStore))  # Methods that are bound to the engine's.
    made = tiermq.AsyncConsumer(tiermq.AsyncStore("s"), store.consumer, 0.0, "o", "g")  # type: ignore[arg-type]
    assert attributes <= {*dir(tiermq.AsyncStore), *vars(made)}


def test_every_error_is_in_the_reference() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    kinds = [each for each in vars(tiermq.errors).values() if inspect.isclass(each) and issubclass(each, TierMQError)]
    assert [each.__name__ for each in kinds if f"| `{each.__name__}` |" not in text] == []
