"""What documents say of the code is there: every ``file.py: name`` in them can be found."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["data-flow.md", "algorithms/pixel-sac.md", "algorithms/pick-and-place.md"]
NAMED = re.compile(r"`((?:\w+/)+\w+\.py): ([\w.]+)`")
FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")


def names_in(path: Path) -> set[str]:
    """Return the functions, classes and ``Class.method`` names of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_function_that_a_page_names_is_there(page):
    text = (ROOT / "docs" / page).read_text()
    named = NAMED.findall(text)
    assert len(named) > 8
    missing = [f"{file}: {name}" for file, name in named if name not in names_in(ROOT / "roboloop" / file)]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_page_that_is_named_is_there(page):
    here = ROOT / "docs" / page
    text = here.read_text()
    files = [
        name for name in FILE.findall(text) if not (ROOT / name).exists() and not (ROOT / "roboloop" / name).exists()
    ]
    links = [link for link in re.findall(r"\]\(([^)#]+\.md)", text) if not (here.parent / link).exists()]
    assert not files + links
