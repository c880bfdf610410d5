"""The house stays clean: import direction, names, functions that fit a screen, no leftovers.

The order of the packages is read from the table in ARCHITECTURE.md, so the document and the rule cannot drift apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tiermq"
FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
# What a room must never know, where the order of the table alone would allow it.
NEVER_KNOWS = {
    "files": {"tiermq.message"},
    "kernel": {"tiermq.config", "tiermq.metrics", "threading", "mmap", "socket"},
    "message": {"tiermq.config", "tiermq.metrics", "mmap", "threading"},
    "history": {"pyspark"},
    "tables": {"pyspark"},
    "pipeline": {"pyspark"},
}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".in", ".h", ".pxd", ".pyi", ".java", ".cfg", ".json"}
TEXT_NAMES = {"LICENSE", "run"}  # Other files without a suffix may be store files, which are no text.
FOLDABLE = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
IGNORED_PARTS = {".git", ".venv", "build", "dist", "__pycache__", ".cache", "out"}


def python_files(*tops: str) -> list[Path]:
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py") if not IGNORED_PARTS & set(path.parts))


def text_files() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part != ".ci" for part in relative.parts)
        generated = IGNORED_PARTS & set(relative.parts) or any(part.endswith(".egg-info") for part in relative.parts)
        if (
            path.is_file()
            and (path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES)
            and not hidden
            and not generated
        ):
            yield path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def rooms_in_order() -> list[str]:
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return [name for line in table.splitlines() for name in re.findall(r"^\| `tiermq\.(\w+)` \|", line)]


def standing_alone() -> set[str]:
    """The modules outside of rooms, as the map names them."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = re.search(r"Standalone modules \(([^)]*)\)", text)
    return set(re.findall(r"`(\w+)`", listed[1])) if listed else set()


def room_of(path: Path) -> str:
    """The room that a source file belongs to, or the module's own name when it stands alone."""
    if SOURCE not in path.parents:
        return "__init__"  # `pyspark_tiermq`, the name by which Spark finds us: a front door like the package's own.
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module imported anywhere in a file, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(SOURCE.parent).with_suffix("").parts[: -node.level]
                base = ".".join([*package, *filter(None, [base])])
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def test_the_map_lists_every_room_and_only_rooms_that_exist() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/*.py")}
    assert set(rooms_in_order()) == folders


def test_modules_outside_rooms_are_the_ones_that_the_map_names() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} - {"__init__"} == standing_alone()


def test_imports_point_one_way_between_rooms() -> None:
    order, alone = rooms_in_order(), standing_alone()
    wrong = []
    for path in python_files("src"):
        room = room_of(path)
        if room == "__init__":
            continue
        if room not in order and room not in alone:
            wrong.append(f"{shown(path)}: ARCHITECTURE.md does not know {room}")
            continue
        for line, module in imports_of(path):
            parts = module.split(".")
            if parts[0] != "tiermq" or len(parts) < 2 or parts[1] not in order:
                continue
            if room in alone or order.index(parts[1]) > order.index(room):
                wrong.append(f"{shown(path)}:{line} imports {module}")
    assert not wrong, "imports against the order of ARCHITECTURE.md"


def test_no_room_imports_what_it_must_never_know() -> None:
    wrong = [
        f"{shown(path)}:{line} imports {module}"
        for path in python_files("src")
        for line, module in imports_of(path)
        for never in NEVER_KNOWS.get(room_of(path), ())
        if module == never or module.startswith(never + ".")
    ]
    assert not wrong


@pytest.mark.parametrize("top", ["src", "tests", "benchmarks", "campaign"])
def test_functions_fit_a_screen(top: str) -> None:
    long = {}
    for path in python_files(top):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{shown(path)}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_no_module_is_named_after_nothing_in_particular() -> None:
    names = python_files("src", "tests", "benchmarks", "campaign")
    assert [shown(path) for path in names if FORBIDDEN_NAMES & set(re.split(r"[_.]", path.stem))] == []
    assert [shown(path) for path in names if FORBIDDEN_NAMES & set(path.parent.parts)] == []


def test_every_module_says_what_it_is() -> None:
    assert [
        shown(path)
        for path in python_files("src", "tests", "benchmarks", "campaign")
        if not ast.get_docstring(tree(path))
    ] == []


def test_every_room_has_a_front_door() -> None:
    assert [room for room in rooms_in_order() if not (SOURCE / room / "__init__.py").exists()] == []


def test_no_module_changes_where_modules_are_found() -> None:
    changed = re.compile(r"sys\.path(\.(append|extend|insert)|\[.*\] *=| *\+?=)|\"PYTHONPATH\":.*sys\.path")
    files = [path for path in python_files("src", "tests", "benchmarks", "campaign") if path != Path(__file__)]
    assert [shown(path) for path in files if changed.search(path.read_text(encoding="utf-8"))] == []


def test_nothing_swallows_every_error() -> None:
    silent = []
    for path in python_files("src", "tests", "benchmarks", "campaign"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                empty = all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)
                if broad and empty:
                    silent.append(f"{shown(path)}:{node.lineno}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                silent.extend(
                    f"{shown(path)}:{node.lineno}"
                    for argument in node.args
                    if ast.unparse(argument) in ("Exception", "BaseException")
                )
    assert silent == []


# Definitions that no line of ours names, and who does. An entry that is not needed fails, too.
CALLED_BY_OTHERS = {
    # asyncio calls a protocol.
    "data_received", "eof_received", "pause_writing", "resume_writing",
    # click asks a group for its commands, and a type for its value.
    "convert",
    "format_commands", "get_command", "list_commands",
    # The demo's child process, by the text of its program.
    "serve_while_wanted",
    # Spark asks a data source.
    "getDefaultReadLimit", "initialOffset", "prepareForTriggerAvailableNow", "reportLatestOffset",
    "streamReader", "streamWriter",
}  # fmt: skip
DOCUMENTED_FOR_USERS = {
    "as_metrics", "committed_offset", "flush_to_tier", "from_properties", "restart", "roll_back",
    "show_in", "write_broker_state",
}  # fmt: skip
"""For those who import us: the documents name them."""
DOCUMENTS_A_FORMAT = {"TOTAL_SIZE_AT", "QUEUE_ID_AT", "FLAG_AT", "BORN_TIMESTAMP_AT", "MULTI_TAGS"}
"""A layout is written down whole, also where nothing reads a field by its place."""
REGISTERING = {"command", "group", "serves", "override", "fixture"}
"""Decorators that hand a function to somebody who calls it."""


def definitions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Functions, methods and classes, unless a decorator registers them, and the constants of the module."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            decorators = {word for each in node.decorator_list for word in re.findall(r"\w+", ast.unparse(each))}
            if not node.name.startswith("__") and not decorators & REGISTERING:
                yield node.name, node.lineno
    for name, _, line in constants_of(path):
        yield name, line


def constants_of(path: Path) -> Iterator[tuple[str, ast.expr, int]]:
    """Names in capital letters that a module gives a value, whether private or not."""
    for node in tree(path).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        value = node.value
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = (
                value.elts if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple) else [value] * len(names)
            )
            for name, its_value in zip(names, values, strict=True):
                if isinstance(name, ast.Name) and name.id.isupper():
                    yield name.id, its_value, node.lineno


def names_used_in(path: Path) -> Iterator[str]:
    """What the code of a module reads, also by a text that is nothing but a name. Imports alone are no use."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
            yield from re.findall(r"\w+", node.value)


def test_every_definition_has_a_user() -> None:
    used = {name for path in python_files("src") for name in names_used_in(path)}
    for path in sorted((ROOT / "native").iterdir()):
        if path.suffix in (".pyx", ".pxi", ".pxd", ".h"):
            used.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    unused = {
        name: f"{shown(path)}:{line}"
        for path in python_files("src")
        for name, line in definitions_of(path)
        if name not in used
    }
    excused = CALLED_BY_OTHERS | DOCUMENTED_FOR_USERS | DOCUMENTS_A_FORMAT
    assert {name: where for name, where in unused.items() if name not in excused} == {}
    assert excused <= unused.keys(), "these have users, or are gone: they need no excuse"


def test_what_is_kept_for_users_is_documented() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    told = {word for document in documents for word in re.findall(r"\w+", document.read_text(encoding="utf-8"))}
    assert told >= DOCUMENTED_FOR_USERS


def value_text(value: ast.expr) -> str | None:
    """The same text for values that are written alike or come out alike; None for what is no value of its own."""
    if isinstance(value, ast.Attribute | ast.Name):
        return None  # Another name of something, at home elsewhere.
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".encode"):
        return None  # The bytes of another constant.
    if isinstance(value, ast.Call) and re.match(
        r"(typing\.)?(TypeVar|ParamSpec)|click\.|logging\.", ast.unparse(value)
    ):
        return None
    if all(isinstance(node, FOLDABLE) for node in ast.walk(value)):
        return repr(eval(compile(ast.Expression(value), "<constant>", "eval"), {}))
    return ast.unparse(value)


def test_no_constant_is_defined_twice() -> None:
    """One home for each. Two that only happen to be equal have names that say what each is."""
    homes: dict[tuple[str, str], list[str]] = {}
    for path in python_files("src"):
        for name, value, line in constants_of(path):
            text = value_text(value)
            if text is not None:
                homes.setdefault((name.lstrip("_"), text), []).append(f"{shown(path)}:{line}")
    assert {name: found for (name, _), found in homes.items() if len(found) > 1} == {}


def test_constants_of_messages_are_defined_with_the_messages_alone() -> None:
    """Also with other values: who reads QUEUE_OFFSET_AT should know which one without looking."""
    theirs = {name for path in (SOURCE / "message").glob("*.py") for name, _, _ in constants_of(path)}
    again = [
        f"{shown(path)}:{line} {name}"
        for path in python_files("src")
        if room_of(path) != "message"
        for name, value, line in constants_of(path)
        if name in theirs and not name.startswith("_") and value_text(value) is not None
    ]
    assert again == []


def found_in_texts(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{shown(path)}:{number} {line.strip()[:80]}")
    return found


# The patterns are put together from pieces, so that this file does not find itself.


def test_nothing_is_left_to_do_in_a_comment() -> None:
    assert found_in_texts(re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")) == []


def test_no_path_of_somebody_s_machine_is_written_down() -> None:
    starts = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/"]
    assert found_in_texts(re.compile(r"(?<![\w.~-])(?:" + "|".join(starts) + ")")) == []


def test_no_package_registry_is_addressed() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com", "maven" + ".org"]
    hosts += [
        "repo.maven." + "apache.org",
        "crates" + ".io",
        "proxy.go" + "lang.org",
        "deb" + "ian.org",
        "docker" + ".io",
    ]
    hosts += ["gh" + "cr.io", "ana" + "conda.org", "rub" + "ygems.org"]
    assert found_in_texts(re.compile("|".join(re.escape(host) for host in hosts))) == []


def headings_of(document: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, fragment = target.partition("#")
            goal = (document.parent / name).resolve() if name else document
            if not goal.exists() or (fragment and fragment not in headings_of(goal)):
                broken.append(f"{shown(document)} -> {target}")
    assert broken == []
