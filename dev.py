#!/usr/bin/env python3
"""One entry for people who work on TierMQ. Needs only Python 3.11 with pip; everything else goes into .venv here.

  python3 dev.py demo            end to end in two minutes: send to a broker, kill -9, recover, copy to a tier
                                 on Spark, evict, read, SQL, export, restore; proof that nothing was lost, pictures
  python3 dev.py demo --tier s3://bucket/prefix    the same on S3, with credentials in AWS_* variables
  python3 dev.py test            ruff, mypy --strict, the test suite, and its store half again in pure Python
  python3 dev.py test -k recover tests/store    any pytest arguments: then one pass over just that
  python3 dev.py test -m slow    the slow tests; -m interop those that need Java or other foreign programs;
                                 -m peer RocketMQ's own integration tests against our brokers
  python3 dev.py lint            only ruff and mypy;  lint --fix repairs what can be repaired
  python3 dev.py prove           try to break it: simulated lives, power cuts, kills, bad disks and networks, fuzzing
  python3 dev.py bench put       a benchmark: put, get, dispatch, recover, index, tier, coldread, spark, …
  python3 dev.py docs            the documentation site, in build/site
  python3 dev.py wheels          sdist, wheel and bill of materials, in dist/
  python3 dev.py matrix          a wheel for each Python that is here, installed and tried; matrix 3.11 3.14: for these

The first run makes .venv and installs the pinned versions of constraints.txt, of what the command needs. Later runs
start at once, and install again only when pyproject.toml, constraints.txt, setup.py or native/ have changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "tiermq-installed"
# What a command needs, an extra of pyproject.toml; all others need `test`, which has these, too.
EXTRAS = {"demo": "demo", "docs": "docs", "wheels": "release", "matrix": "release"}
# What runs once more, over the pure kernel. Of tests/kernel only what does not take both forms by name: such tests have
# compared them in the first pass.
PURE_TESTS = (
    "files", "commitlog", "consumequeue", "index", "store", "embedded/test_local_store.py",
    "kernel/test_message_checks.py",
    "kernel/test_columns.py::test_decoded_columns_hold_what_they_were_given",
    "kernel/test_frame_reader.py::test_a_send_has_values_for_what_it_did_not_say",
)  # fmt: skip

# Twice the processors of a small machine: two thirds of a run are waiting for disks, leases and child processes.
WORKERS = 4
MYPY = ("mypy --strict", ["-m", "mypy"])  # What it checks, and how, is in pyproject.toml.
# Of a whole run, so many failures may be of tests that fail once, and each must pass so often alone.
UNSTEADY_MAX = 3
AGAIN_TURNS = 3


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("-h", [])
    if command not in ("demo", "test", "lint", "bench", "prove", "docs", "wheels", "matrix"):
        print(__doc__)
        if command in ("-h", "--help", "help"):
            return 0
        print(f"dev.py: there is no command {command!r}", file=sys.stderr)
        return 2
    if sys.version_info < (3, 11):
        print(f"dev.py: Python 3.11 or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    os.chdir(HERE)
    prepare(EXTRAS.get(command, "test"))
    if command == "test":
        return report(lint_steps([]) + chosen_tests(rest) if rest else everything())
    if command == "lint":
        return report(lint_steps(rest))
    if command == "prove":
        return os.execv(PYTHON, [str(PYTHON), "-m", "campaign", *rest])
    # From here on this process is the command: signals and the exit code are its own.
    if command == "bench":
        return os.execv(PYTHON, [str(PYTHON), "-m", "benchmarks", *rest])
    if command == "docs":
        os.environ["NO_MKDOCS_2_WARNING"] = "1"  # The theme's notice of its successor: see RELEASE.md.
        return os.execv(PYTHON, [str(PYTHON), "-m", "mkdocs", "build", "--strict", *rest])
    if command in ("wheels", "matrix"):
        return os.execv(PYTHON, [str(PYTHON), "-m", "release.wheels", command, *rest])
    return os.execv(PYTHON, [str(PYTHON), "-m", "tiermq.cli", command, *rest])


def prepare(extra: str = "test") -> None:
    """Make .venv and install an extra into it, unless that has been done for these very build files."""
    if not PYTHON.exists():
        print("dev.py: making .venv", flush=True)
        venv.create(VENV, with_pip=importlib.util.find_spec("ensurepip") is not None)
    for packages in VENV.glob("lib/python*/site-packages"):
        # Tests, campaign and benchmarks share helpers, also in child processes and in Spark's workers.
        (packages / "tiermq-checkout.pth").write_text(f"{HERE}\n{HERE / 'tests'}\n")
    stamp = STAMP if extra == "test" else STAMP.with_name(f"{STAMP.name}-{extra}")
    if any(each.exists() and each.read_text() == build_hash() for each in (STAMP, stamp)):
        return
    print("dev.py: installing (this happens again only when the build files change)", flush=True)
    own_pip = subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    pip = [PYTHON, "-m", "pip"] if own_pip else [sys.executable, "-m", "pip", "--python", PYTHON]
    install = [*pip, "install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt"]
    # The build's own needs come first and pinned, so that the build is as repeatable as the environment.
    subprocess.run([*install, "setuptools", "Cython"], check=True)
    for stale in HERE.glob("src/tiermq/kernel/compiled*.so"):
        stale.unlink()  # A kernel of older sources must not survive a build that fails.
    subprocess.run([*install, "--no-build-isolation", "-e", f".[{extra}]"], check=True)
    stamp.write_text(build_hash())


def build_hash() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in [*map(Path, ("pyproject.toml", "constraints.txt", "setup.py")), *sorted(Path("native").glob("*.*"))]:
        if path.suffix not in (".c", ".so", ".html"):  # Products of the build, not its sources.
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def lint_steps(rest: list[str]) -> list[tuple[str, bool]]:
    return [*ruff_steps(fix="--fix" in rest), step(*MYPY)]


def ruff_steps(*, fix: bool = False) -> list[tuple[str, bool]]:
    return [
        step("ruff check", ["-m", "ruff", "check", *(["--fix"] if fix else []), "."]),
        step("ruff format", ["-m", "ruff", "format", *([] if fix else ["--check"]), "."]),
    ]


def chosen_tests(rest: list[str]) -> list[tuple[str, bool]]:
    return [step("pytest " + " ".join(rest), ["-m", "pytest", *rest])]


def everything() -> list[tuple[str, bool]]:
    """What a change must pass. The types are checked beside the tests, which wait for disks and child processes."""
    steps = ruff_steps()
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen([PYTHON, *MYPY[1]], stdout=output, stderr=subprocess.STDOUT) as types:
            if not (HERE / "tests" / "__pycache__").exists():
                # Compile the tests once here, not in every worker at the same time. What fails, fails again below.
                print("\n== compile the tests", flush=True)
                collect = [PYTHON, "-m", "pytest", "--collect-only", "-qq"]
                subprocess.run(collect, env=child_environment(), stdout=subprocess.DEVNULL, check=False)
            steps.append(whole_suite())
            steps += pure_steps()
            code = types.wait()
        print(f"\n== {MYPY[0]}", flush=True)
        output.seek(0)
        print(output.read().decode(errors="replace"), end="", flush=True)
    return [*steps, (f"{MYPY[0]} (beside the tests)", code == 0)]


def pure_steps() -> list[tuple[str, bool]]:
    """The tests of what works through the kernel once more, over the pure one."""
    if not list(HERE.glob("src/tiermq/kernel/compiled*.so")):
        print("dev.py: the kernel was not compiled here, so that was the pure pass; no second one", flush=True)
        return []
    chosen = [f"tests/{name}" for name in PURE_TESTS]
    command = ["-m", "pytest", "-n", str(WORKERS), "--dist", "loadgroup", *chosen]
    return [step("pytest, pure kernel", command, TIERMQ_PURE="1")]


def whole_suite() -> tuple[str, bool]:
    """The suite, and once more alone whatever failed in it: see "Unstable tests" in CONTRIBUTING.md."""
    name, passed = step("pytest", ["-m", "pytest", "--cache-clear", "-n", str(WORKERS), "--dist", "loadgroup"])
    kept = HERE / ".pytest_cache" / "v" / "tiermq" / "failed"  # Written by tests/conftest.py.
    failed = {} if passed or not kept.exists() else json.loads(kept.read_text())
    again = failed.get("again", [])
    if not again or len(again) > UNSTEADY_MAX or failed["final"]:
        return name, passed
    # Workers add the name of a test's group; a parameter may have an @ of its own.
    again = [each.rpartition("@")[0] if each.rfind("@") > each.rfind("]") else each for each in again]
    for turn in range(1, AGAIN_TURNS + 1):
        _, passed = step(f"what failed, alone, {turn} of {AGAIN_TURNS}", ["-m", "pytest", "-n", "0", *again])
        if not passed:
            return name, False
    print("\n== UNSTEADY: these failed beside others and passed alone; fix them, their failures are above")
    print("\n".join(again))
    return f"{name}, UNSTEADY: {len(again)} failed once: {', '.join(again)}", True


def step(name: str, arguments: list[str], **environment: str) -> tuple[str, bool]:
    print(f"\n== {name}", flush=True)
    started = time.monotonic()
    code = subprocess.run([PYTHON, *arguments], env=child_environment(**environment), check=False).returncode
    return f"{name} ({time.monotonic() - started:.0f} s)", code == 0


def child_environment(**more: str) -> dict[str, str]:
    """Ours, but bytecode is kept: the suite starts hundreds of processes, and each would compile all it imports."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more


def report(steps: list[tuple[str, bool]]) -> int:
    print("\n== summary")
    for name, passed in steps:
        print(f"{'ok    ' if passed else 'FAILED'} {name}")
    return 0 if all(passed for _, passed in steps) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
