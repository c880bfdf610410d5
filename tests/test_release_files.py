"""Files for GitHub, Docker and systemd: what cannot run here is checked by the tools of its field."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from release.wheels import SUPPORTED
from servers.preloaded import Preloaded

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = [
    *(("github-workflows", path) for path in WORKFLOWS),
    ("dependabot", ROOT / ".github" / "dependabot.yml"),
    *(("github-issue-forms", ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml") for name in ("bug", "feature")),
    ("compose-spec", ROOT / "deploy" / "compose" / "compose.yaml"),
]


def checked(program: str, *words: object) -> None:
    path = shutil.which(program, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if path is None:
        pytest.skip(f"{program} is not on this machine")
    done = subprocess.run([path, *map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("schema", "path"), SCHEMAS, ids=[path.stem for _, path in SCHEMAS])
def test_each_file_is_what_its_reader_expects(schema: str, path: Path) -> None:
    checked("check-jsonschema", "--builtin-schema", f"vendor.{schema}", path)


def test_workflows_give_no_more_permission_than_they_need() -> None:
    checked("zizmor", "--offline", "--no-progress", ".github")


def test_the_image_is_built_as_images_should_be() -> None:
    checked("hadolint", "deploy/Dockerfile")


def test_the_unit_is_one_that_systemd_takes() -> None:
    checked("systemd-analyze", "verify", "deploy/systemd/tiermq-broker.service")


def test_the_unit_starts_a_broker_with_the_settings_file_that_its_instructions_install(tmp_path: Path) -> None:
    unit = (ROOT / "deploy" / "systemd" / "tiermq-broker.service").read_text()
    [(source, target)] = re.findall(r"^#   install -D -m 644 (\S+) (\S+)$", unit, re.MULTILINE)
    [command] = re.findall(r"^ExecStart=/usr/bin/env tiermq (.*)$", unit, re.MULTILINE)
    installed = str(ROOT / "deploy" / "systemd" / source)
    own = {target: installed, "/var/lib/tiermq/store": str(tmp_path / "store"), "5557": "0"}
    assert own.keys() < set(command.split())
    words = [own.get(each, each) for each in command.split()]
    process = Preloaded([*words, "--port", "0", "--namesrv-port", "0", "--json"])
    ready = json.loads(process.stdout.readline())
    process.terminate()
    process.communicate()
    assert (ready["event"], ready["unknown"], ready["ignored"]) == ("ready", [], [])
    assert process.returncode == 0


@pytest.mark.parametrize(("tag", "there", "code"), [
    ("v1.2.3", ["tiermq-1.2.3.tar.gz", "tiermq-1.2.3-cp311-cp311-manylinux_2_17_x86_64.whl"], 0),
    ("v1.2.3", ["tiermq-1.2.0.tar.gz", "tiermq-1.2.0-cp311-cp311-manylinux_2_17_x86_64.whl"], 1),
    ("v1.2.3", ["tiermq-1.2.3.tar.gz", "tiermq-1.2.0-cp311-cp311-manylinux_2_17_x86_64.whl"], 1),
    ("v1.2.3", ["tiermq-1.2.3-cp311-cp311-manylinux_2_17_x86_64.whl"], 1),
])  # fmt: skip
def test_a_tag_that_is_not_the_version_publishes_nothing(tmp_path: Path, tag: str, there: list[str], code: int) -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())["jobs"]["publish"]["steps"]
    [at] = [number for number, step in enumerate(steps) if "run" in step]
    assert at == len(steps) - 2, "between the downloads and the upload to the index"
    (tmp_path / "dist").mkdir()
    for name in there:
        (tmp_path / "dist" / name).touch()
    # GitHub's shell for a step.
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps[at]["run"]]
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert code == 0 or "::error::expected only files of version 1.2.3, as the tag v1.2.3, found " in done.stdout


def test_workflows_run_commands_that_exist() -> None:
    commands = {word for path in WORKFLOWS for word in re.findall(r"python3 dev\.py (\w+)", path.read_text())}
    assert commands == {"lint", "test", "prove", "docs", "wheels", "matrix"}
    for command in commands:
        assert f'"{command}"' in (ROOT / "dev.py").read_text(encoding="utf-8")


def test_the_tested_versions_of_python_are_those_of_the_wheels() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    tested = {version.replace(".", "") for version in jobs["test"]["strategy"]["matrix"]["python"]}
    build = re.search(r'^build = "(.*)"$', PROJECT, re.MULTILINE)
    assert build is not None
    [smoke] = re.findall(r'^test-command = "python \{project\}/(\S+) compiled"$', PROJECT, re.MULTILINE)
    assert (ROOT / smoke).is_file()
    assert set(re.findall(r"cp(\d+)-", build[1])) == tested == {version.replace(".", "") for version in SUPPORTED}
    assert {f"Python :: {version}" for version in SUPPORTED} <= set(re.findall(r"Python :: 3\.\d+", PROJECT))
    [command] = [step["run"] for step in jobs["matrix"]["steps"] if "run" in step]
    assert command == f"python3 dev.py matrix {' '.join(SUPPORTED)}"


def test_what_the_image_copies_is_not_ignored_and_all_that_a_build_needs() -> None:
    kept = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert {word for line in copied for word in line.split()} == kept
    assert {"pyproject.toml", "setup.py", "native", "src"} <= kept
