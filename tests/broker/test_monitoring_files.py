"""The dashboard and the alert rules in `deploy` name metrics that a broker serves, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_panels_do_not_overlap_and_rules_say_what_happened() -> None:
    panels = json.loads((DEPLOY / "grafana" / "tiermq.json").read_text())["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    groups = yaml.safe_load((DEPLOY / "prometheus" / "tiermq.rules.yml").read_text())["groups"]
    names = [rule["alert"] for group in groups for rule in group["rules"]]
    assert len(set(names)) == len(names)
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for g in groups for rule in g["rules"])
