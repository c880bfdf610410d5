"""The dashboard and the alert rules in `deploy` name metrics that a broker serves, and nothing else."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers.debian import Unavailable, unpacked
from tiermq.testing import LocalBroker

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
METRIC = re.compile(r"\b(?:rocketmq|tiermq|process)_[a-z0-9_]+\b")
OF_PROMETHEUS = {"up"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all samples of a broker with a tier."""
    directory = tmp_path_factory.mktemp("served")
    with LocalBroker(directory / "store", tier=f"file://{directory}/tier") as broker:
        broker.send("orders", b"x")
        assert broker.broker.parts.tiered is not None
        assert broker.broker.parts.tiered.flush_to_tier()
        lines = broker.broker.render_metrics().splitlines()
    found = set()
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return found


def expressions() -> list[tuple[str, str]]:
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tiermq.json").read_text())
    rules: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "tiermq.rules.yml").read_text())
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    return found + [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]


def test_every_panel_and_rule_asks_for_metrics_that_are_served(served: set[str]) -> None:
    asked = [(title, name) for title, text in expressions() for name in METRIC.findall(text)]
    assert len({title for title, _ in asked}) > 20
    assert [(title, name) for title, name in asked if name not in served] == []
    assert [title for title, text in expressions() if not METRIC.search(text) and text[:2] not in OF_PROMETHEUS] == []


GRID_COLUMNS = 24


def overlapping(panels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The titles of panels that cover one cell of Grafana's grid."""
    covered: dict[tuple[int, int], set[str]] = defaultdict(set)
    for panel in panels:
        at = panel["gridPos"]
        for cell in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])):
            covered[cell].add(panel["title"])
    return sorted({pair for titles in covered.values() for pair in itertools.combinations(sorted(titles), 2)})


def test_panels_do_not_overlap_and_rules_say_what_happened() -> None:
    panels = json.loads((DEPLOY / "grafana" / "tiermq.json").read_text())["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert overlapping(panels) == []
    assert [p["title"] for p in panels if p["gridPos"]["x"] + p["gridPos"]["w"] > GRID_COLUMNS] == []
    moved = [{**panel, "gridPos": {**panel["gridPos"], "y": max(0, panel["gridPos"]["y"] - 1)}} for panel in panels[1:]]
    assert overlapping([panels[0], *moved]), "what covers another by one row is found"
    groups = yaml.safe_load((DEPLOY / "prometheus" / "tiermq.rules.yml").read_text())["groups"]
    names = [rule["alert"] for group in groups for rule in group["rules"]]
    assert len(set(names)) == len(names)
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for g in groups for rule in g["rules"])


def families_of(text: str) -> dict[str, str]:
    """Names and types of OpenMetrics' text, by the rules of its specification."""
    *lines, end = text.splitlines()
    assert end == "# EOF"
    kinds: dict[str, str] = {}
    name = ""
    for line in lines:
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            if word == "TYPE":
                assert name not in kinds, f"{name} comes twice, or is interleaved"
                kinds[name] = rest
            continue
        sample = re.fullmatch(r'([a-z_:][a-z0-9_:]*)(?:\{[a-z_]+=".*"\})? (?:[-+]?[0-9].*|[-+]Inf|NaN)', line)
        assert sample is not None, line
        parts = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[kinds[name]]
        assert sample[1] in [f"{name}{part}" for part in parts], line
    return kinds


def test_counters_are_counters_and_openmetrics_has_its_own_form(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", metrics_port=0) as broker:
        broker.send("orders", b"x")
        address = broker.broker.metrics_address
        assert address is not None
        answers = {}
        for accept in ("", "application/openmetrics-text; version=1.0.0"):
            connection = http.client.HTTPConnection(address)
            connection.request("GET", "/metrics", headers={"Accept": accept})
            answer = connection.getresponse()
            answers[accept] = (answer.getheader("content-type", ""), answer.read().decode())
            connection.close()
    plain, opened = answers.values()
    assert plain[0].startswith("text/plain; version=0.0.4")
    assert opened[0].startswith("application/openmetrics-text; version=1.0.0")
    kinds = dict(line.split()[2:4] for line in plain[1].splitlines() if line.startswith("# TYPE "))
    assert [name for name, kind in kinds.items() if name.endswith("_total") != (kind == "counter")] == []
    assert kinds["tiermq_put_latency_seconds"] == kinds["rocketmq_rpc_latency"] == "histogram"
    assert opened[1].endswith("# EOF\n")
    families = families_of(opened[1])
    assert "tiermq_store_puts" in families
    assert not [name for name in families if name.endswith("_total")]
    assert "\ntiermq_store_puts_total 1\n" in opened[1]


def program_of_prometheus() -> str:
    """Prometheus' own checker: of this machine, or Debian's package."""
    try:
        return shutil.which("promtool") or str(unpacked("prometheus") / "usr" / "bin" / "promtool")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.interop
def test_prometheus_itself_accepts_the_rules_and_the_metrics(tmp_path: Path) -> None:
    rules = DEPLOY / "prometheus" / "tiermq.rules.yml"
    promtool = program_of_prometheus()
    done = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert (done.returncode, "rules found" in done.stdout + done.stderr) == (0, True), done.stderr
    with LocalBroker(tmp_path / "store", tier=f"file://{tmp_path}/tier") as broker:
        broker.send("orders", b"x")
        text = broker.broker.render_metrics()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    # Names of RocketMQ's are as they are, and of ours two have ms.
    problems = [line for line in checked.stderr.splitlines() if line and not line.startswith("rocketmq_")]
    assert [line for line in problems if not line.endswith("abbreviated units")] == [], checked.stderr


def test_the_document_says_what_has_become_of_each_metric_of_rocketmq(served: set[str]) -> None:
    text = (DEPLOY.parent / "docs" / "broker.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `rocketmq_")]
    kept: set[str] = set()
    others: set[str] = set()
    for row in rows:
        names, words = row.strip("|").split("|")
        (kept if words.strip().startswith("served") else others).update(METRIC.findall(names))
    assert len({name for name in kept | others if not name.startswith("rocketmq_rocksdb")}) == 58
    histograms = {name.removesuffix("_bucket") for name in served if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    families = (served - parts) | histograms
    assert sorted(kept - families) == []
    ours = {name for name in families if name.startswith("rocketmq_")}
    extra = {"rocketmq_tiered_storage_size", "rocketmq_tiered_storage_message_reserve_time",
             "rocketmq_tiered_store_provider_failures_total"}  # fmt: skip
    assert sorted(ours - kept - extra) == []
    assert sorted(others & families) == []
