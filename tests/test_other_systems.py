"""No name of the standard library that Python lacks on macOS is used, unless the code asks for it before.

What Python has where is read from the stubs that mypy brings: they say `if sys.platform == "linux"`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from present import present

ROOT = Path(__file__).resolve().parent.parent
STUBS = Path(present(present(find_spec("mypy")).origin)).parent / "typeshed/stdlib"
MODULES = ("errno", "fcntl", "mmap", "os", "resource", "select", "signal", "socket", "time")
OLDEST_PYTHON = (3, 11)


@cache
def names_of(module: str, platform: str) -> frozenset[str]:
    """What the module has on that system."""
    folder = STUBS / module / "__init__.pyi"
    stub = folder if folder.is_file() else STUBS / f"{module}.pyi"
    return frozenset(_declared(ast.parse(stub.read_text(encoding="utf-8")).body, platform))


def _declared(statements: list[ast.stmt], platform: str) -> Iterator[str]:
    for each in statements:
        match each:
            case ast.If():
                yield from _declared(each.body if _holds(each.test, platform) else each.orelse, platform)
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                yield each.name
            case ast.Assign():
                yield from (target.id for target in each.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Import() | ast.ImportFrom():
                for alias in each.names:
                    if alias.name != "*":
                        yield alias.asname or alias.name
                    elif isinstance(each, ast.ImportFrom) and each.module:
                        yield from names_of(each.module, platform)


def _holds(test: ast.expr, platform: str) -> bool:
    """Whether a condition of a stub holds: sys.platform and sys.version_info, and what is made of them."""
    system = type("System", (), {"platform": platform, "version_info": (*OLDEST_PYTHON, 0)})
    return bool(eval(compile(ast.Expression(test), "stub", "eval"), {"sys": system, "TYPE_CHECKING": True}))


def used_names(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Module, name and line of each use, without those that the file asks for by hasattr or getattr."""
    asked = {
        (call.args[0].id, call.args[1].value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("hasattr", "getattr")
        and isinstance(call.args[0], ast.Name) and isinstance(call.args[1], ast.Constant)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in MODULES:
            if (node.value.id, node.attr) not in asked:
                yield node.value.id, node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from ((node.module, alias.name, node.lineno) for alias in node.names)


def lacking(source: str, platform: str) -> list[str]:
    """What a program uses that Python has on Linux, and not on that system."""
    return [
        f"{line}: {module}.{name}"
        for module, name, line in sorted(used_names(ast.parse(source)), key=lambda use: use[2])
        if name in names_of(module, "linux") and name not in names_of(module, platform)
    ]


def test_no_name_is_used_that_macos_lacks() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for each in lacking(path.read_text(encoding="utf-8"), "darwin")
    ]
    assert not found, "\n".join(found)


@pytest.mark.skipif(sys.platform != "linux", reason="compares the stubs with the Python that runs")
def test_the_stubs_know_what_this_python_has() -> None:
    import os

    for name in ("fdatasync", "posix_fallocate", "sched_getaffinity", "setxattr", "pwrite"):
        assert hasattr(os, name)
        assert name in names_of("os", "linux")
    missing = {"fdatasync", "posix_fallocate", "sched_getaffinity", "setxattr"}
    assert missing & names_of("os", "darwin") == set()
    assert {"pwrite", "fsync", "environ", "path"} <= names_of("os", "darwin")
    assert {"socket", "AF_UNIX"} <= names_of("socket", "darwin")


def test_a_use_is_found_unless_the_file_asks_before() -> None:
    bare = "import os\nos.fdatasync(3)\nfrom os import posix_fallocate\nos.fsync(3)\n"
    assert lacking(bare, "darwin") == ["2: os.fdatasync", "3: os.posix_fallocate"]
    assert lacking("import os\nif hasattr(os, 'fdatasync'):\n    os.fdatasync(3)\n", "darwin") == []
