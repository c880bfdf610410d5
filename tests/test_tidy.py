"""House rules: import direction, names, functions that fit a screen, no dead definitions.

The order of the packages, and what each must not depend on, are read from ARCHITECTURE.md, so document and rule agree.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tiermq"
FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
MODULES_MEANT_BY = {
    "brokers": {"tiermq.broker"},
    "commands": {"tiermq.cli"},
    "configuration": {"tiermq.config"},
    "files": {"tiermq.files", "mmap"},
    "messages": {"tiermq.message"},
    "metrics": {"tiermq.metrics"},
    "network": {"tiermq.remoting", "asyncio", "ssl"},
    "remoting": {"tiermq.remoting"},
    "Spark": {"tiermq.spark", "pyspark"},
    "stores": {"tiermq.store", "tiermq.tier"},
    "threads": {"threading", "concurrent.futures"},
    "tier": {"tiermq.tier"},
}
"""The words of the column "must not depend on" in ARCHITECTURE.md."""
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".in", ".h", ".pxd", ".pyi", ".java", ".cfg", ".json"}
TEXT_NAMES = {"LICENSE", "run"}  # Other files without a suffix may be store files, which are no text.
FOLDABLE = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
IGNORED_PARTS = {".git", ".venv", "build", "dist", "__pycache__", ".cache", "out"}


# Parsed once, in one process: parsing is what these tests cost.
pytestmark = pytest.mark.xdist_group("reads-all-sources")


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Syntax trees have no cycles: no garbage collector walks over them here, nor in the tests that come after."""
    gc.disable()
    yield
    tree.cache_clear()
    gc.enable()


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


@cache
def architecture() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def forbidden_dependencies() -> dict[str, list[str]]:
    """The packages in the order of ARCHITECTURE.md, each with the words for what it must not depend on."""
    rows = re.findall(r"^\| `tiermq\.(\w+)` \|.*\|([^|]*)\|$", architecture(), flags=re.MULTILINE)
    return {name: [word for word in words.strip().split(", ") if word] for name, words in rows}


def packages_in_order() -> list[str]:
    return list(forbidden_dependencies())


def standalone_modules() -> set[str]:
    """The modules outside of packages, as ARCHITECTURE.md lists them."""
    text = architecture()
    listed = re.search(r"Standalone modules \(([^)]*)\)", text)
    return set(re.findall(r"`(\w+)`", listed[1])) if listed else set()


def package_of(path: Path) -> str:
    """The package of a source file, or the name of a standalone module."""
    if SOURCE not in path.parents:
        return "__init__"  # `pyspark_tiermq`, the name by which Spark finds the data source.
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


def test_architecture_lists_the_packages_that_exist() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/*.py")}
    assert set(packages_in_order()) == folders


def test_architecture_lists_the_modules_outside_of_packages() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} - {"__init__"} == standalone_modules()


def test_imports_point_one_way_between_packages() -> None:
    order, alone = packages_in_order(), standalone_modules()
    wrong = []
    for path in python_files("src"):
        package = package_of(path)
        if package == "__init__":
            continue
        if package not in order and package not in alone:
            wrong.append(f"{shown(path)}: ARCHITECTURE.md does not list {package}")
            continue
        for line, module in imports_of(path):
            parts = module.split(".")
            if parts[0] != "tiermq" or len(parts) < 2 or parts[1] not in order:
                continue
            if package in alone or order.index(parts[1]) > order.index(package):
                wrong.append(f"{shown(path)}:{line} imports {module}")
    assert not wrong, "imports against the order of ARCHITECTURE.md"


def test_no_package_imports_what_it_must_not_depend_on() -> None:
    forbidden = forbidden_dependencies()
    wrong = [
        f"{shown(path)}:{line} imports {module}"
        for path in python_files("src")
        for line, module in imports_of(path)
        for word in forbidden.get(package_of(path), ())
        for name in MODULES_MEANT_BY[word]
        if module == name or module.startswith(name + ".")
    ]
    assert not wrong


def test_imports_point_one_way_inside_the_tier() -> None:
    listed = re.search(r"^Imports inside `tiermq.tier` go to the left only: (.*)$", architecture(), flags=re.MULTILINE)
    assert listed
    order = re.findall(r"`([\w/]+)`", listed[1])
    tier = SOURCE / "tier"

    def entry_of(module: str) -> str:
        """`retention/retention_plan` for itself, `retention` for the other modules of that package."""
        parts = module.split("/")
        return "/".join(parts[:2]) if "/".join(parts[:2]) in order else parts[0]

    wrong = []
    for path in (path for path in python_files("src/tiermq/tier") if path != tier / "__init__.py"):
        own = entry_of(path.relative_to(tier).with_suffix("").as_posix())
        for line, module in imports_of(path):
            inner = module.removeprefix("tiermq.tier.").replace(".", "/")
            if not module.startswith("tiermq.tier.") or entry_of(inner) == own:
                continue
            if order.index(entry_of(inner)) > order.index(own):
                wrong.append(f"{shown(path)}:{line} imports {module}")
    assert wrong == []


def test_units_and_end_marks_of_a_tier_are_read_in_one_package_alone() -> None:
    reading = re.compile(r"\bUNIT\.(?:iter_)?unpack|\bMAGIC_BLANK\b|\bqiq\b")
    assert [
        shown(path)
        for path in python_files("src/tiermq/tier", "src/tiermq/history", "src/tiermq/pipeline", "src/tiermq/spark")
        if SOURCE / "tier" / "queue" not in path.parents and reading.search(path.read_text(encoding="utf-8"))
    ] == []


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


def test_every_module_has_a_docstring() -> None:
    assert [
        shown(path)
        for path in python_files("src", "tests", "benchmarks", "campaign")
        if not ast.get_docstring(tree(path))
    ] == []


def test_every_package_has_an_init_module() -> None:
    assert [name for name in packages_in_order() if not (SOURCE / name / "__init__.py").exists()] == []


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


# Definitions without a use in src or native, and their callers. An entry that is not needed fails, too.
CALLED_BY_OTHERS = {
    # asyncio and h11 call a protocol.
    "connection_lost", "connection_made", "data_received", "eof_received", "on_response_complete", "pause_writing",
    "resume_writing",
    # click calls a group and a type.
    "convert", "format_commands", "get_command", "invoke", "resolve_command",
    # pyiceberg calls the files of a catalogue.
    "_initialize_fs",
    # PyYAML calls a loader; Spark's worker calls `traceback`.
    "construct_mapping", "print_exc",
    # The demo's child process, by the text of its program; its process id is for its tests.
    "serve_while_wanted",
    # The campaign reports it when an index does not catch up.
    "hole_count",
    # Spark calls a data source.
    "getDefaultReadLimit", "initialOffset", "prepareForTriggerAvailableNow", "reportLatestOffset",
    "streamReader", "streamWriter",
}  # fmt: skip
DOCUMENTED_FOR_USERS = {
    "as_metrics", "born_at", "committed_offset", "count_rows", "from_properties", "get_fragments",
    "leave_open", "poll", "restart", "roll_back", "send_oneway", "show_in", "simple_consumer", "to_pandas",
    "write_broker_state",
}  # fmt: skip
"""For users who import the package: the documents name them."""
READ_BY_USERS = {"receipts"}
"""Attributes that the documents name."""
DOCUMENTS_A_FORMAT = {"TOTAL_SIZE_AT", "QUEUE_ID_AT", "FLAG_AT", "BORN_TIMESTAMP_AT"}
"""A layout is complete, also where no code reads a field by its offset."""
REGISTERING = {"command", "group", "serves", "override", "fixture", "operation"}
"""Decorators that register a function, so that a framework calls it."""


def definitions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Functions, methods and classes, unless a decorator registers them, and the constants of the module."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not node.name.startswith("__") and not is_registered(node):
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


def names_used_in(node: ast.AST, inside: frozenset[str] = frozenset()) -> Iterator[str]:
    """What the code below a node reads, also by a text that is nothing but a name. Imports alone are no use.

    Nor is a use in a function of the same name (`inside`): a method that only passes a call on keeps nothing alive. A
    function that a decorator registers does.
    """
    if is_list_of_exports(node):
        return  # What is offered is not used by that.
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_registered(node):
        inside |= {node.name}
    yield from (name for name in _names_of(node) if name not in inside)
    for child in ast.iter_child_nodes(node):
        yield from names_used_in(child, inside)


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return [node.attr]
    if isinstance(node, ast.alias) and node.asname:
        return [node.name]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
        return re.findall(r"\w+", node.value)
    return []


def is_list_of_exports(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


def is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return bool({word for each in node.decorator_list for word in re.findall(r"\w+", ast.unparse(each))} & REGISTERING)


def words_of_the_compiled_kernel() -> set[str]:
    sources = [path for path in (ROOT / "native").iterdir() if path.suffix in (".pyx", ".pxi", ".pxd", ".h")]
    return {word for path in sources for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def test_every_definition_has_a_user() -> None:
    used = {name for path in python_files("src") for name in names_used_in(tree(path))} | words_of_the_compiled_kernel()
    unused = {
        name: f"{shown(path)}:{line}"
        for path in python_files("src")
        for name, line in definitions_of(path)
        if name not in used
    }
    excused = CALLED_BY_OTHERS | DOCUMENTED_FOR_USERS | DOCUMENTS_A_FORMAT
    assert {name: where for name, where in unused.items() if name not in excused} == {}
    assert excused <= unused.keys(), "these have uses, or do not exist: remove them from the lists"


def test_every_attribute_that_is_set_is_read() -> None:
    """A counter without a reader counts for no one: it becomes a metric, a line of the log, or goes."""
    nodes = [(path, node) for path in python_files("src") for node in ast.walk(tree(path))]
    read = {node.attr for _, node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    read |= {name for _, node in nodes if isinstance(node, ast.Constant) for name in _names_of(node)}
    read |= words_of_the_compiled_kernel() | READ_BY_USERS
    assert [
        f"{shown(path)}:{node.lineno} {node.attr}"
        for path, node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
        and node.attr not in read
    ] == []


def test_what_is_kept_for_users_is_documented() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = {word for document in documents for word in re.findall(r"\w+", document.read_text(encoding="utf-8"))}
    assert words >= DOCUMENTED_FOR_USERS | READ_BY_USERS


# Words of a tale, for which the field has others: reported, the client, fixed, again.
FOREIGN_WORDS = re.compile(
    r"(^|_)(told|tells|nobody|somebody|mended|anew|survey|surveys|surveyed|agenda)(_|$)", re.IGNORECASE
)


WRITTEN_BEFORE = re.compile(r"^tests/(broker|cli|client|clients|console|embedded|interop|pipeline|replication)/")
"""Folders of tests that still have such words."""


def files_with_the_words_of_the_field() -> list[Path]:
    found = python_files("src", "tests", "benchmarks", "campaign")
    return [path for path in found if path != Path(__file__) and not WRITTEN_BEFORE.match(shown(path))]


def test_no_name_has_a_word_that_the_field_does_not_use() -> None:
    found = {
        shown(path)
        for path in files_with_the_words_of_the_field()
        for node in ast.walk(tree(path))
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
        if isinstance(name, str) and FOREIGN_WORDS.search(name)
    }
    assert found == set()


def test_no_text_has_such_a_word() -> None:
    """Docstrings, comments, help and error texts. Field names of RocketMQ are no words."""
    words = re.compile(r"\b(?:told|tells|nobody|somebody|whoever|mended|anew)\b", re.IGNORECASE)
    assert [
        f"{shown(path)}:{number} {line.strip()[:80]}"
        for path in files_with_the_words_of_the_field()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if words.search(line)
    ] == []


def value_text(value: ast.expr) -> str | None:
    """Equal texts for equal values; None for what is no value of its own."""
    if isinstance(value, ast.Attribute | ast.Name):
        return None  # Another name of a value that is defined elsewhere.
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
    """Two that only happen to be equal have names that distinguish them."""
    homes: dict[tuple[str, str], list[str]] = {}
    for path in python_files("src"):
        for name, value, line in constants_of(path):
            text = value_text(value)
            if text is not None:
                homes.setdefault((name.lstrip("_"), text), []).append(f"{shown(path)}:{line}")
    assert {name: found for (name, _), found in homes.items() if len(found) > 1} == {}


def test_constants_of_messages_are_defined_with_the_messages_alone() -> None:
    """Also with other values: QUEUE_OFFSET_AT means the same everywhere."""
    of_messages = {name for path in (SOURCE / "message").glob("*.py") for name, _, _ in constants_of(path)}
    again = [
        f"{shown(path)}:{line} {name}"
        for path in python_files("src")
        if package_of(path) != "message"
        for name, value, line in constants_of(path)
        if name in of_messages and not name.startswith("_") and value_text(value) is not None
    ]
    assert again == []


def test_magic_numbers_of_messages_have_no_second_name() -> None:
    of_messages = {
        value_text(value)
        for path in (SOURCE / "message").glob("*.py")
        for name, value, _ in constants_of(path)
        if re.fullmatch(r"MAGIC_(V1|V2|BLANK)", name)
    }
    again = [
        f"{shown(path)}:{line} {name}"
        for path in python_files("src")
        if package_of(path) != "message"
        for name, value, line in constants_of(path)
        if value_text(value) in of_messages
    ]
    assert len(of_messages) == 3
    assert again == []


def found_in_texts(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{shown(path)}:{number} {line.strip()[:80]}")
    return found


# The patterns are joined from parts, so that they do not match this file.


def test_nothing_is_left_to_do_in_a_comment() -> None:
    assert found_in_texts(re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")) == []


def test_no_path_of_a_developer_s_machine_is_written_down() -> None:
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
