"""The site is built without a warning, has all that is public, and its links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("furo")
pytest.importorskip("myst_parser")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Modules whose functions and classes are in the reference.
ROOMS = ["hyperadam", *(f"hyperadam.{name}" for name in ("data", "kernels", "meta", "tasks"))]


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build as `make docs` does, with the package that is tested."""
    command = [*"-m sphinx -q -W --keep-going -d".split(), out / "doctrees", source, out / "html"]
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr
    return out / "html"


class Page(HTMLParser):
    """What a page refers to, and what may be referred to on it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given["id"]} if "id" in given else set()
        self.links += [given[name] for name in ("href", "src") if name in given]


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert {page.stem for page in site.glob("*.html")} >= pages
    contents = Page(site / "index.html").links
    assert pages - {"index"} <= {link.removesuffix(".html") for link in contents}


def test_links_lead_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.glob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = unquote(link.partition("?")[0]).partition("#")
            there = site / file if file else path
            if not there.exists() or (there in pages and anchor not in pages[there].anchors):
                dead.append(f"{path.name}: {link}")
    assert not dead
    assert sum(len(page.links) for page in pages.values()) > 500


@pytest.mark.parametrize("room", ROOMS)
def test_all_that_is_public_is_in_the_reference(room: str, site: Path) -> None:
    module = importlib.import_module(room)
    public = {name for name in module.__all__ if getattr(getattr(module, name), "__name__", "")}
    public -= {"kernels", "Progress"}  # a module, and a type
    anchors = Page(site / "reference.html").anchors
    assert {name for name in public if f"{room}.{name}" not in anchors} == set()


def test_a_link_to_nothing_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    shutil.copytree(DOCS / "_static", source / "_static")
    shutil.copy(DOCS / "conf.py", source)
    (tmp_path / "table.md").write_text("# Elsewhere\n")
    good = "[page](other.md#here) [folder](_static) [file](../table.md)"
    bad = "[heading](other.md#there) [page](another.md) [folder](../nowhere)"
    (source / "index.md").write_text(f"# Home\n{good}\n\n{bad}\n\n```{{toctree}}\nother\n```\n")
    (source / "other.md").write_text("# Other\n## Here\nText.\n")
    done = build(source, tmp_path / "out")
    assert done.returncode != 0
    assert re.findall(r"index.md:(\d+): .*'([^']+)' \[", done.stderr) == [
        ("4", "there"),
        ("4", "another.md"),
        ("4", "../nowhere"),
    ]
