"""Every Python block of README and docs runs, in order, page by page."""

import re
from pathlib import Path

import pytest

from hyperadam import tasks
from hyperadam.cli import COMMANDS
from hyperadam.rules import RULES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Pages that are only read.
PROSE = {
    "commands.md",
    "findings-by-experiment.md",
    "findings.md",
    "glossary.md",
    "index.md",
    "kernel-log.md",
    "meta-training-log.md",
    "meta-training-methods.md",
    "paper-tasks.md",
    "reference.md",
    "suite-results.md",
    "suite.md",
}
#: Pages whose first loop must learn: its loss starts near 1.5.
LEARNS = {"README.md", "start.md"}
#: What a page's code imports beyond the package's own dependencies.
NEEDS = {
    "inside.md": ["matplotlib", "tensorboard"],
    "training-code.md": ["lightning", "transformers", "accelerate", "skorch"],
}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in PROSE], ids=lambda page: page.name
)
def test_code_runs(page, tmp_path, monkeypatch, capsys):
    for library in NEEDS.get(page.name, []):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    # what a page registers is its own: other tests list the tasks and the rules
    monkeypatch.setattr(tasks.registry, "_REGISTERED", {})
    known = dict(RULES)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks, f"{page.name} shows no code"
    namespace = {}
    try:
        for block in blocks:
            exec(compile(block, page.name, "exec"), namespace)
    finally:
        for name in set(RULES) - set(known):
            del RULES[name]
    if page.name in LEARNS:
        printed = re.findall(r"^loss (\S+)$", capsys.readouterr().out, flags=re.MULTILINE)
        assert len(printed) == 1
        assert float(printed[0]) < 0.4


def headings(page):
    """The anchors of a page, as they are made from its headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_command_is_told():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\S+)` \|", page, flags=re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(
        r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")
    ):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in headings(there), f"{target}#{anchor}"
