"""Kubernetes' and Compose's files: checked by the tools of their field, and their commands started without either."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from servers.loopback import free_ports
from servers.preloaded import Preloaded
from servers.seaweedfs import SeaweedFS, missing, program
from test_release_files import ROOT, checked
from tiermq.broker.elected_broker import LAST_HANDOVER_S, RELEASE_S
from tiermq.broker.settings_file import read_settings_file
from tiermq.cli.main import cli
from tiermq.remoting.server import DRAIN_S
from tiermq.testing import LocalBroker
from tiermq.tier.driver.tier_url import bare_driver
from tiermq.tier.tier_config import TierConfig
from waiting import until

KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPOSE = ROOT / "deploy" / "compose"
CONF = KUBERNETES / "broker" / "broker.conf"


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def stateful_set() -> dict[str, Any]:
    (found,) = (each for each in documents(KUBERNETES / "broker" / "broker.yaml") if each["kind"] == "StatefulSet")
    return found


def container() -> dict[str, Any]:
    (found,) = stateful_set()["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def rendered() -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on this machine")
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_object_has_the_fields_of_its_kind() -> None:
    files = [KUBERNETES / "namesrv.yaml", KUBERNETES / "broker" / "broker.yaml"]
    checked("kubernetes-validate", "--strict", *files)


def test_what_kustomize_makes_has_two_brokers_with_names_and_selectors_of_their_own(tmp_path: Path) -> None:
    text = rendered()
    (tmp_path / "all.yaml").write_text(text)
    checked("kubernetes-validate", "--strict", tmp_path / "all.yaml")
    found = list(yaml.safe_load_all(text))
    sets = {each["metadata"]["name"]: each for each in found if each["kind"] == "StatefulSet"}
    assert sets.keys() == {"orders-broker", "payments-broker", "tiermq-namesrv"}
    maps = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "ConfigMap"}
    for name in ("orders", "payments"):
        made = sets[f"{name}-broker"]["spec"]
        (runs,) = made["template"]["spec"]["containers"]
        keys = {each["name"]: each["valueFrom"] for each in runs["env"]}
        assert maps[keys["BROKER_NAME"]["configMapKeyRef"]["name"]]["BROKER_NAME"] == f"broker-{name}"
        for kind in ("PodDisruptionBudget", "NetworkPolicy", "Service"):
            (one,) = (each for each in found if each["kind"] == kind and each["metadata"]["name"] == f"{name}-broker")
            spec = one["spec"]
            labels = spec.get("podSelector", spec["selector"] if kind == "Service" else spec.get("selector"))
            assert labels.get("matchLabels", labels) == made["selector"]["matchLabels"]


def test_a_pod_has_the_time_that_a_broker_may_take_to_end() -> None:
    tier = TierConfig(**read_settings_file(CONF).tier)
    (*_, script) = container()["lifecycle"]["preStop"]["exec"]["command"]
    hand_over_s = float(script.split("--timeout ")[1].split()[0])
    own_s = hand_over_s + LAST_HANDOVER_S + RELEASE_S + DRAIN_S + tier.tier_close_timeout / 1000
    assert own_s * 1.25 <= stateful_set()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] <= own_s * 1.5


def test_nothing_runs_as_root_and_no_disk_goes_by_itself() -> None:
    sets = [
        each
        for path in (KUBERNETES / "namesrv.yaml", KUBERNETES / "broker" / "broker.yaml")
        for each in documents(path)
        if each["kind"] == "StatefulSet"
    ]
    assert len(sets) == 2
    for each in sets:
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        (only,) = pod["containers"]
        assert only["securityContext"]["readOnlyRootFilesystem"]
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert (
            each["spec"].get("persistentVolumeClaimRetentionPolicy", {"whenScaled": "Retain"})["whenScaled"] == "Retain"
        )


def command_of_pod(values: dict[str, str]) -> list[str]:
    words = [str(each) for each in container()["args"]]
    for name, value in values.items():
        words = [each.replace(f"$({name})", value) for each in words]
    return words


def commands_of_compose(service: str) -> list[str]:
    found = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"][service]["command"]
    return [str(each) for each in found]


def on_this_machine(words: list[str], path: Path, name_server: str, conf: Path) -> tuple[list[str], int]:
    """The same command with the paths, addresses and ports of this machine; and its metrics port."""
    port, _, metrics = free_ports(3)
    placed = {"/data/store": str(path), "/data": str(path), "namesrv:9876": name_server}
    words = [placed.get(each, each) for each in words]
    joined = (
        " ".join(words).replace("/etc/tiermq/broker.conf", str(conf)).replace("metrics-port 5557", "metrics-port=5557")
    )
    joined = joined.replace("5557", str(metrics)).replace("s3://history/prod", path.with_name("tier").as_uri())
    return [*joined.split(), "--port", str(port)], metrics


@pytest.mark.parametrize("of", ["pod", "orders-a", "payments-b"])
def test_a_broker_s_command_starts_a_replica_that_is_ready_and_ends_well(tmp_path: Path, of: str) -> None:
    names, conf = free_ports(1)[0], tmp_path / "broker.conf"
    name_server = f"127.0.0.1:{names}"
    own = CONF if of == "pod" else COMPOSE / "broker.conf"
    # Addresses of other machines are all that may not be used here; the store's files are small.
    kept = [line for line in own.read_text().splitlines() if "0.0.0.0" not in line]
    small = ["mappedFileSizeCommitLog=16777216", "maxHashSlotNum=5000", "maxIndexNum=20000"]
    conf.write_text(
        "\n".join([*kept, *small, "masterLeaseTerm=3000", "masterLeaseRenewal=700", "masterLeaseMargin=600"])
    )
    values = {
        "BROKER_NAME": "broker-orders",
        "TIER": (tmp_path / "tier").as_uri(),
        "NAMESRV_ADDR": name_server,
        "POD_IP": "127.0.0.1",
    }
    words = command_of_pod(values) if of == "pod" else commands_of_compose(of)
    command, metrics = on_this_machine(words, tmp_path / "store", name_server, conf)
    with ExitStack() as ending:
        for started in (["namesrv", "--bind", "127.0.0.1", "--port", str(names), "--json"], [*command, "--json"]):
            process = Preloaded(started)
            ending.callback(process.communicate)
            ending.callback(process.terminate)
            ready = json.loads(process.stdout.readline())
            assert ready["event"] == "ready"
        probes = container()
        for probe in (probes["startupProbe"], probes["livenessProbe"], probes["readinessProbe"]):
            page = f"http://127.0.0.1:{metrics}{probe['httpGet']['path']}"
            until(partial(is_up, page))
        assert ready["name"] == ("broker-payments" if of == "payments-b" else "broker-orders")
    assert process.returncode == 0


def is_up(page: str) -> bool:
    try:
        with urllib.request.urlopen(page) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def test_prometheus_scrapes_every_broker_of_compose_and_grafana_has_the_dashboard() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    brokers = {name for name, each in services.items() if "--standby" in (each.get("command") or [])}
    assert brokers == {"orders-a", "orders-b", "payments-a", "payments-b"}
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for each in job["static_configs"] for target in each["targets"]}
    assert targets == {f"{name}:5557" for name in brokers}
    for service in ("prometheus", "grafana", *brokers):
        for mount in services[service]["volumes"]:
            source = mount.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), mount


def test_the_drain_s_job_has_the_fields_of_its_kind_and_does_what_it_says(tmp_path: Path) -> None:
    folder = KUBERNETES / "drain"
    checked("kubernetes-validate", "--strict", folder / "job.yaml")
    (job,) = documents(folder / "job.yaml")
    (only,) = job["spec"]["template"]["spec"]["containers"]
    (literals,) = documents(folder / "kustomization.yaml")[0]["configMapGenerator"]
    names = dict(each.split("=") for each in literals["literals"])
    assert names == {"BROKER_NAME": "broker-orders", "NAMESRV_ADDR": "tiermq-namesrv-0.tiermq-namesrv:9876"}
    with LocalBroker(tmp_path / "store", tier=(tmp_path / "tier").as_uri(), broker_name="broker-orders") as broker:
        broker.send("orders", b"kept")
        values = {**names, "NAMESRV_ADDR": broker.name_server}
        words = [str(each) for each in only["args"]]
        for name, value in values.items():
            words = [each.replace(f"$({name})", value) for each in words]
        result = CliRunner().invoke(cli, words)
        assert (result.exit_code, result.stdout.startswith("broker-orders: drained: ")) == (0, True), result.output
    shutil.rmtree(tmp_path / "store")
    read = CliRunner().invoke(cli, ["tier", "cat", (tmp_path / "tier").as_uri(), "--topic", "orders"])
    assert "kept" in read.stdout


def test_the_drain_s_job_is_applied_by_itself_alone(tmp_path: Path) -> None:
    assert "kind: Job" not in rendered()
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES / "drain")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "drain.yaml").write_bytes(done.stdout)
    checked("kubernetes-validate", "--strict", tmp_path / "drain.yaml")


def compose_environment() -> dict[str, str]:
    """What every container of TierMQ has."""
    found = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["orders-a"]["environment"]
    assert isinstance(found, dict)
    return found


def test_the_bucket_of_compose_is_made_once_and_found_at_each_later_start(tmp_path: Path) -> None:
    """Its volume outlives the containers, and brokers start only after this service has ended with 0."""
    if reason := missing():
        pytest.skip(f"no real S3 server here: {reason}")
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    shell, flag, script = services["bucket"]["entrypoint"]
    path = os.pathsep.join([str(Path(program()).parent), os.environ["PATH"]])

    def start(master: str) -> subprocess.CompletedProcess[str]:
        assert "-master=s3:9333" in script
        words = [shell, flag, script.replace("s3:9333", master)]
        return subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)

    with SeaweedFS(tmp_path / "s3") as server:
        server.create_bucket("my-history-2")  # Another one, with that name inside its own.
        for _ in range(2):
            done = start(server.master)
            assert done.returncode == 0, done.stdout + done.stderr
            server.store("history").put("probe", b"probe")


def test_the_environment_of_compose_opens_its_bucket() -> None:
    """Plain HTTP to another machine is refused unless the environment allows it. No request is made here."""
    words = commands_of_compose("orders-a")
    driver = bare_driver(words[words.index("--tier") + 1], compose_environment())
    assert driver.url == "s3://history/prod"
    driver.close()
    (account,) = json.loads((COMPOSE / "s3.json").read_text())["identities"]
    (keys,) = account["credentials"]
    environment = compose_environment()
    assert keys == {"accessKey": environment["AWS_ACCESS_KEY_ID"], "secretKey": environment["AWS_SECRET_ACCESS_KEY"]}


def test_a_broker_of_compose_uploads_with_the_accounts_and_the_environment_of_compose(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(f"no real S3 server here: {reason}")
    server = SeaweedFS(tmp_path / "s3")
    accounts = tmp_path / "s3" / "s3.json"
    both = [json.loads(path.read_text())["identities"] for path in (accounts, COMPOSE / "s3.json")]
    accounts.write_text(json.dumps({"identities": [*both[0], *both[1]]}))
    names, port, _, metrics = free_ports(4)
    name_server = f"127.0.0.1:{names}"
    conf = tmp_path / "broker.conf"
    kept = [line for line in (COMPOSE / "broker.conf").read_text().splitlines() if "0.0.0.0" not in line]
    conf.write_text("\n".join([*kept, "mappedFileSizeCommitLog=16777216", "maxHashSlotNum=5000", "maxIndexNum=20000"]))
    placed = {
        "/data": str(tmp_path / "store"),
        "/etc/tiermq/broker.conf": str(conf),
        "namesrv:9876": name_server,
        "5557": str(metrics),
    }
    words = [placed.get(each, each) for each in commands_of_compose("orders-a")]
    with server, ExitStack() as ending:
        server.create_bucket("history")
        environment = {**os.environ, **compose_environment(), "AWS_ENDPOINT_URL": server.endpoint}
        for started in (["namesrv", "--bind", "127.0.0.1", "--port", str(names)], [*words, "--port", str(port)]):
            process = Preloaded([*started, "--json"], environment=environment)
            ending.callback(process.communicate)
            ending.callback(process.terminate)
            ready = json.loads(process.stdout.readline())
            assert ready["event"] == "ready"
        until(partial(is_up, f"http://127.0.0.1:{metrics}/ready"))
        assert ready["tier"] == "s3://history/prod"
        result = CliRunner().invoke(cli, ["produce", "orders", "kept", "--namesrv", name_server])
        assert result.exit_code == 0, result.output
        ending.close()  # An orderly end uploads.
        read = CliRunner().invoke(cli, ["tier", "cat", "s3://history/prod", "--topic", "orders"], env=environment)
        assert "kept" in read.stdout, read.output
