"""Files for GitHub, Docker and systemd: what cannot run here is checked by the tools of its field."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from release.wheels import SUPPORTED

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
