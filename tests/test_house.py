"""The house rules, as tests: direction of imports, no unsafe loads, proportions."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roboloop.algos import registry as algorithms
from roboloop.envs import registry as suites

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "roboloop").rglob("*.py"))
LEVELS = [
    {"core"},
    {"envs", "nets", "data", "track"},
    {"sample", "algos", "exchange"},
    {"run"},
    {"launch", "api"},
    {"dash"},
    {"cli"},
]
RANK = {package: rank for rank, level in enumerate(LEVELS) for package in level}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT / "roboloop").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roboloop."):
            found.add(node.module.split(".")[1])
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("roboloop.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    own = package_of(path)
    if own not in RANK:  # roboloop/__init__.py
        return
    wrong = [p for p in imports(path) if p != own and RANK[p] >= RANK[own]]
    assert not wrong, f"{own} must not import {wrong}"


def test_nothing_unsafe_is_loaded():
    pattern = re.compile(
        r"\bpickle\b|cloudpickle|torch\.load\(|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load\(|allow_pickle=True"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_files_and_functions_keep_their_proportions():
    too_long = [str(p) for p in FILES if len(p.read_text().splitlines()) > 400]
    for path in FILES:
        functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
        too_long += [f"{path}:{f.lineno} {f.name}" for f in functions if (f.end_lineno or 0) - f.lineno >= 60]
    assert not too_long


def test_reading_and_launching_runs_needs_no_torch_and_no_simulator():
    code = (
        "import sys, roboloop.cli, roboloop.track.commands, roboloop.envs.registry, roboloop.run.config\n"
        "import roboloop.run.report\n"
        "import roboloop.launch.commands, roboloop.launch.watch, roboloop.launch.search, roboloop.dash.detail\n"
        "print([m for m in ('torch', 'mujoco', 'metaworld', 'dm_control', 'matplotlib', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def modules_imported(path: Path) -> set[str]:
    """Return all modules of ours that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in full}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & set(MODULES)) - {module_of(path)}


def names_in(path: Path) -> set[str]:
    """Return the names that a module has at its top level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def test_benchmarks_examples_and_scripts_import_what_is_there():
    """Nothing else runs all of them."""
    missing = []
    for path in [p for name in ("benchmarks", "docs", "examples") for p in (ROOT / name).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is None or module.split(".")[0] != "roboloop":
                continue
            there = names_in(MODULES[module]) if module in MODULES else set()
            names = [alias.name for alias in node.names if f"{module}.{alias.name}" not in MODULES]
            missing += [f"{path.name}: {module}.{name}" for name in names if name not in there]
    assert not missing


def test_no_module_imports_itself_through_others():
    left = {name: modules_imported(path) for name, path in MODULES.items()}
    while free := [name for name, needs in left.items() if not needs & set(left)]:
        for name in free:
            del left[name]
    assert not left, "these import each other in a circle, or what does"


def test_no_class_name_has_two_meanings():
    places: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert not {name: where for name, where in places.items() if len(where) > 1}


GENERAL = ("core", "data", "sample", "exchange", "run", "launch", "track", "dash", "api", "cli")
"""Packages that know no algorithm and no suite by name."""
OWN_VERBS = ("run/simgan.py", "run/match.py", "run/predict.py", "run/recorded.py", "run/sysid.py")
"""Verbs of the legged suites alone, whose stages have names of algorithms."""


def asks_for_a_kind(node: ast.AST) -> bool:
    """Say whether code asks what class a config section has, or which algorithm or environment it names."""

    def is_section(part: ast.AST) -> bool:
        return any(re.search(r"(Config|Settings)$", getattr(n, "id", getattr(n, "attr", ""))) for n in ast.walk(part))

    def is_name(part: ast.AST) -> bool:
        return isinstance(part, ast.Attribute) and ast.unparse(part).endswith(("algo.name", "env.id", "suite.name"))

    def is_text(part: ast.AST) -> bool:
        return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(part))

    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return is_section(kinds)
        case ast.MatchClass(cls=kind):
            return is_section(kind)
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=kinds):
            return any(map(is_section, kinds))
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=others):
            return is_name(left) and any(map(is_text, others))
        case ast.Compare(left=left, comparators=others):
            return any(map(is_name, (left, *others))) and any(map(is_text, (left, *others)))
    return False


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(cfg.algo, SACConfig)",
        "isinstance(\n    cfg.algo,\n    (PPOConfig, sac.config.SACSettings),\n)",
        "type(cfg.env) is PandaEnvConfig",
        "match cfg.algo:\n  case PPOConfig():\n    pass",
        "cfg.algo.name == 'sac'",
        "run.config.env.id in ('panda/reach', 'panda/push')",
    ],
)
def test_who_asks_for_a_kind_is_found(code):
    assert any(map(asks_for_a_kind, ast.walk(ast.parse(code))))


def general_files() -> list[Path]:
    return [path for path in FILES if package_of(path) in GENERAL]


def test_no_code_asks_which_algorithm_or_suite_a_config_is_of():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in general_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if asks_for_a_kind(node)
    ]
    assert not found


def test_no_table_of_algorithms_or_suites_or_of_what_they_need_stands_outside_their_records():
    needed = {package for _, suite in suites.records() for package in suite.packages}
    known = {*algorithms.ALGORITHMS, *suites.SUITES, *needed}
    found = []
    for path in general_files():
        if str(path.relative_to(ROOT / "roboloop")) in OWN_VERBS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            parts = getattr(node, "elts", getattr(node, "keys", []))
            names = known.intersection(
                n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)
            )
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {sorted(names)}"] if len(names) > 1 else []
    assert not found
