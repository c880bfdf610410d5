"""Executors on Kubernetes: the entry point of their container, and deploy/spark by a scheduler of Spark's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.offload.wire_world import fill, wire_world
from servers.loopback import free_ports
from spark.loopback_kubernetes import POD_IP, LoopbackKubernetes
from test_deploy import documents
from test_release_files import ROOT, checked
from tiermq.errors import BadConfig
from tiermq.spark.executor_pod import BACKEND, OPTIONS, executor_command

DEPLOY = ROOT / "deploy" / "spark"
ASKED = {name: f"<{name}>" for name in OPTIONS.values()} | {"SPARK_EXECUTOR_MEMORY": "900m"}
SECRET = {"AWS_ACCESS_KEY_ID": "an id", "AWS_SECRET_ACCESS_KEY": "the secret key"}


def test_the_variables_of_the_scheduler_become_the_command_of_the_executor() -> None:
    jvm = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 2, 0)}
    more = {"SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_CLASSPATH": "", "SPARK_JAVA_OPT_X": "no"}
    command = executor_command(Path("/java"), Path("/spark/jars"), ASKED | jvm | more)
    at = command.index(BACKEND)
    assert command[:at] == ["/java", "-Dnumber=0", "-Dnumber=2", "-Dnumber=10", "-Xms900m", "-Xmx900m", "-cp",
                            "/opt/spark/conf:/spark/jars/*"]  # fmt: skip
    given = dict(zip(command[at + 1 :: 2], command[at + 2 :: 2], strict=True))
    assert given == {option: f"<{name}>" for option, name in OPTIONS.items()}


@pytest.mark.parametrize("name", [*OPTIONS.values(), "SPARK_EXECUTOR_MEMORY"])
def test_an_executor_that_misses_a_variable_is_not_started(name: str) -> None:
    with pytest.raises(BadConfig, match=rf"found no {name}\. Pods of executors are made by Spark"):
        executor_command(Path("/java"), Path("/spark"), ASKED | {name: ""})


@pytest.mark.parametrize(("words", "said"), [([], "found \\[\\]"), (["driver"], "driver"), (["executor"], "found no")])
def test_the_entry_point_ends_with_words_where_it_can_start_nothing(words: list[str], said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, "-m", "tiermq.spark.executor_pod", *words],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(said, done.stderr)
    assert "Traceback" not in done.stderr


def test_every_object_has_the_fields_of_its_kind() -> None:
    checked("kubernetes-validate", "--strict", DEPLOY / "offload.yaml", DEPLOY / "executor.yaml")


def test_nothing_runs_as_root_or_writes_into_its_image() -> None:
    pods = [job_pod(), documents(DEPLOY / "executor.yaml")[0]["spec"]]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        (only,) = pod["containers"]
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def job_pod() -> dict[str, Any]:
    (found,) = (each for each in documents(DEPLOY / "offload.yaml") if each["kind"] == "Deployment")
    pod = found["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def test_the_files_of_deploy_copy_a_broker_by_executors_that_the_scheduler_of_spark_asks_for(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    with (
        wire_world(tmp_path) as world,
        LoopbackKubernetes(tmp_path / "pods", {"tiermq-bucket": SECRET}) as kubernetes,
    ):
        fill(world.broker, 300)
        kubernetes.put_pod("offload-0")
        port, blocks = free_ports(2)
        words = in_loopback(
            {
                "$(NAMESRV_ADDR)": world.broker.name_server,
                "$(TIER)": world.tier,
                "$(POD_NAMESPACE)": "tiermq",
                "$(POD_NAME)": "offload-0",
                "$(POD_IP)": POD_IP,
                "$(SPARK_IMAGE)": yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["images"][0]["name"],
                "https://kubernetes.default.svc:443": kubernetes.url,
                "/etc/tiermq": str(DEPLOY),
                "port=7078": f"port={port}",
                "port=7079": f"port={blocks}",
            }
        )
        # The watch of the API is a stream; by polling Spark learns the same.
        words += ["--conf=spark.kubernetes.executor.enableApiWatcher=false", "--conf=spark.executor.memory=512m"]
        words += ["--conf=spark.executor.instances=1", "--conf=spark.kubernetes.executor.apiPollingInterval=1s"]
        environment = {**os.environ, **SECRET, "SPARK_LOCAL_IP": POD_IP}
        with subprocess.Popen(
            [sys.executable, "-m", "tiermq.cli", *words], env=environment, text=True, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as driver:  # fmt: skip
            assert driver.stderr is not None
            lines: list[str] = []
            while "copied" not in (line := driver.stderr.readline()):
                assert line, lines
                lines.append(line)
            assert re.search(r"copied 300 messages", line)
            (executor,) = kubernetes.made
            driver.send_signal(signal.SIGTERM)
            reported, _ = driver.communicate()
        assert driver.returncode == 0
        assert "300 messages" in reported
        assert kubernetes.pods == ["offload-0"], "executors are deleted at the end of the job"
        assert SECRET["AWS_SECRET_ACCESS_KEY"].encode() not in b"".join(kubernetes.bodies)
        check_template(executor)
        assert world.copied() >= {"orders", "payments"}
        assert "KubernetesExecutorBackend" in kubernetes.log_of(executor["metadata"]["name"])


def in_loopback(values: dict[str, str]) -> list[str]:
    """The driver's command with values for the variables of its pod, and the addresses and paths of this machine."""
    (container,) = job_pod()["containers"]
    words = [str(word) for word in container["args"]]
    for name, value in values.items():
        assert any(name in word for word in words), name
        words = [word.replace(name, value) for word in words]
    assert not [word for word in words if "$(" in word]
    return words


def check_template(made: dict[str, Any]) -> None:
    """What the template has is in the pod that Spark asked for, and the driver's pod owns it."""
    wanted = documents(DEPLOY / "executor.yaml")[0]
    assert made["spec"]["securityContext"] == wanted["spec"]["securityContext"]
    (own,), (asked,) = made["spec"]["containers"], wanted["spec"]["containers"]
    assert (own["command"], own["args"]) == (asked["command"], ["executor"])
    assert own["securityContext"] == asked["securityContext"]
    assert own["envFrom"] == asked["envFrom"]
    assert {mount["mountPath"] for mount in own["volumeMounts"]} >= {"/tmp", "/opt/spark/conf"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner["name"] == "offload-0"
