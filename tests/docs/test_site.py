"""The site is built without a warning, has all that is public, and its links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from inspect import isfunction
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
    folders = [out / "doctrees", source, out / "html"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", *folders],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )


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


def test_the_site_is_whole(tmp_path: Path) -> None:
    """One build for all of it: building takes seconds."""
    done = build(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {path.stem: Page(path) for path in (tmp_path / "html").glob("*.html")}
    written = {page.stem for page in DOCS.glob("*.md")}
    assert written <= set(pages)
    assert written <= {link.removesuffix(".html") for link in pages["start"].links} | {"start"}
    assert missing(pages["reference"]) == set()
    assert dead_links(tmp_path / "html", pages) == []


def missing(reference: Page) -> set[str]:
    """Public functions and classes that the reference does not have."""
    found = set()
    for room in ROOMS:
        module = importlib.import_module(room)
        things = {name: getattr(module, name) for name in module.__all__}
        called = {name for name, x in things.items() if isinstance(x, type) or isfunction(x)}
        found |= {f"{room}.{name}" for name in called}
    assert len(found) > 40
    return found - reference.anchors


def dead_links(site: Path, pages: dict[str, Page]) -> list[str]:
    """Links within the site to a file or a heading that is not there."""
    dead, seen = [], 0
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = unquote(link.partition("?")[0]).partition("#")
            there = site / (file or f"{name}.html")
            target = pages.get(there.stem) if there.suffix == ".html" else None
            if not there.exists() or (target and anchor not in target.anchors):
                dead.append(f"{name}: {link}")
            seen += 1
    assert seen > 500
    return dead


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
