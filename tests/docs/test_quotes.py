"""The pages say what the results say: every number, every verdict, every table that is made."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hyperadam
from hyperadam.experiments.paper.runner import Place, load
from hyperadam.experiments.paper.specs import EXPERIMENTS
from hyperadam.report import quotes_suite
from hyperadam.report.quotes import BLOCK, MADE, QUOTE, Numbers, quote, refresh, unquoted

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Pages on which no other number may stand.
HELD = [
    "README.md",
    "choosing.md",
    "findings-by-experiment.md",
    "findings.md",
    "paper-tasks.md",
]
QUOTING = [page for page in PAGES if re.search("<!--=|<!-- made:", page.read_text("utf-8"))]
#: What the prose itself defines: how sure, and how large, a difference has to be. And names.
DEFINED = {"95 %", "1 %", "1811.08996", "3.10", "2.0"}


@pytest.fixture(scope="module")
def numbers() -> Numbers:
    place = Place(ROOT / "results")
    return Numbers(
        [(e, load(e, place.store)) for e in EXPERIMENTS.values()],
        ROOT / "results" / "suite",
        ROOT / "results" / "published",
    )


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.name)
def test_every_number_is_that_of_the_results(page: Path, numbers: Numbers) -> None:
    written = page.read_text(encoding="utf-8")
    assert written.count("<!--=") == len(QUOTE.findall(written)), "a comment that quotes nothing"
    assert written.count("<!-- made:") == len(BLOCK.findall(written)), "a block without an end"
    assert refresh(written, numbers) == written, (
        "numbers have changed: hyperadam report --quote README.md docs/*.md"
    )


def test_what_is_made_is_shown() -> None:
    """Every block has its place, and the pages that are held to the results are among them."""
    text = "".join(page.read_text(encoding="utf-8") for page in QUOTING)
    assert {found["name"] for found in BLOCK.finditer(text)} == set(MADE)
    assert set(HELD) <= {page.name for page in QUOTING}
    assert len(QUOTE.findall(text)) > 150


@pytest.mark.parametrize("page", HELD)
def test_no_number_is_left_to_itself(page: str) -> None:
    (path,) = [path for path in PAGES if path.name == page]
    assert set(unquoted(path.read_text(encoding="utf-8"))) <= DEFINED


def test_a_wrong_number_is_seen(numbers: Numbers) -> None:
    """Each number and verdict in turn, made wrong."""
    pages = [page for page in QUOTING if page.name.startswith("findings")]
    written = "".join(page.read_text(encoding="utf-8") for page in pages)
    for found in QUOTE.finditer(written):
        if found["words"] == "not in results":
            continue
        wrong = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), found["text"])
        if wrong == found["text"]:
            wrong = "otherwise"
        piece = found[0].replace(found["text"], wrong, 1)
        assert refresh(piece, numbers) == found[0]
    (made,) = [found for found in BLOCK.finditer(written) if found["name"] == "claims"]
    assert refresh(made[0].replace("undecided", "holds", 1), numbers) == made[0]


def test_the_suite_is_quoted_as_its_tables_have_it(numbers: Numbers) -> None:
    """Against what `hyperadam suite --report` writes, by other code."""
    table = (ROOT / "results" / "suite" / "table.md").read_text(encoding="utf-8")
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in table.splitlines()]
    (scores,) = [row for row in rows if row and row[0] == "hyperadam2" and len(row) == 11]
    assert quote(["suite", "below", "hyperadam2", "adam"], "", numbers) == scores[2]
    assert quote(["suite", "below", "hyperadam2", "adam-linear"], "", numbers) == scores[3]
    ratio = quote(["suite", "ratio", "hyperadam2", "adam-linear"], ".000", numbers)
    assert float(ratio) == pytest.approx(float(scores[8].split()[0]), abs=6e-4)
    (speeds,) = [row for row in rows if row and row[0] == "hyperadam2" and len(row) == 4]
    speed = speeds[1].removeprefix("at least ").split()[0]
    assert quote(["suite", "speed", "hyperadam2", "1000"], ".00", numbers) == speed
    tabular = [row for row in rows if row and row[0] == "tabular" and len(row) > 12]
    loss = quote(["suite", "loss", "tabular", "100", "hyperadam2"], ".000", numbers)
    assert float(loss) == pytest.approx(float(tabular[0][-1].strip("*")), rel=0.01)


@pytest.mark.parametrize("words", ["loss tabular 100 lion", "best adam"])
def test_what_the_suite_does_not_have_is_refused(words: str, numbers: Numbers) -> None:
    with pytest.raises(ValueError, match="the suite has no"):
        quote(["suite", *words.split()], ".000", numbers)
    with pytest.raises(ValueError, match="no results of the suite"):
        quote(["suite", "pairs", "adam", "muon"], "0", Numbers([]))


def test_the_recipe_is_quoted_as_its_files_have_it(numbers: Numbers) -> None:
    folder = ROOT / "results" / "published"
    rows = (folder / "validation.csv").read_text(encoding="utf-8").split()
    assert quote(["recipe", "updates"], "0", numbers) == f"{int(rows[-1].split(',')[0]):,}"
    kept = hyperadam.load_rule("hyperadam-published").provenance
    assert quote(["recipe", "best", "at"], "0", numbers) == f"{kept['updates']:,}"
    _, plain, scaled = kept["validation"][-1]
    best = float(quote(["recipe", "best"], ".0000", numbers))
    assert best == pytest.approx((plain + scaled) / 2, abs=1e-4)
    assert numbers.recipe is not None
    reached = [row for row in numbers.recipe.grid.rows if row[3].text == "reached"]
    shown = f"{len(reached)} of {len(numbers.recipe.numbers)}"
    assert quote(["recipe", "reached"], "", numbers) == shown
    with pytest.raises(ValueError, match="the published recipe has no taste"):
        quote(["recipe", "taste"], "0", numbers)
    with pytest.raises(ValueError, match="no run of the published recipe"):
        quote(["recipe", "updates"], "0", Numbers([]))


@pytest.mark.parametrize("factor", [0.5, 2.0, None])
def test_what_is_said_of_the_suite_reads_well_however_it_falls(factor: float | None) -> None:
    """With half of all losses, with twice as much, and with no run of ours at all."""
    suite = quotes_suite.Suite(ROOT / "results" / "suite")
    entries = suite.results.entries
    for key, entry in list(entries.items()):
        if key[2] == quotes_suite.OURS and factor is None:
            del entries[key]
        elif key[2] == quotes_suite.OURS:
            losses = tuple(factor * loss for loss in entry.losses)
            entries[key] = replace(entry, losses=losses)
    told = {name: make(suite) for name, make in quotes_suite.MADE.items()}
    assert all(told.values())
    assert not re.search("nan|None", "".join(told.values()))
    lines = [line for line in told["suite-losses"].splitlines() if "constant" in line]
    found = [tuple(map(int, re.findall(r"on (\d+) of (\d+) tasks", line)[0])) for line in lines]
    assert len(found) == (0 if factor is None else 4)  # 100, 1,000, 2,000 and 10,000 steps
    lost, compared = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
    assert lost > compared / 2 if factor == 2.0 else lost < 3


def test_every_task_of_the_suite_has_a_name_for_sentences() -> None:
    assert set(quotes_suite.NAMES) == set(quotes_suite.TASKS)


@pytest.mark.parametrize(
    ("page", "head", "source"),
    [
        ("performance.md", "| ns a coordinate |", "step.md"),
        ("performance.md", "| ns a parameter |", "matrices.md"),
        ("memory.md", "| final loss, 100 steps |", "bfloat16.md"),
    ],
)
def test_tables_of_benchmarks_are_as_measured(page: str, head: str, source: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    _, _, *rows = text[text.index(head) :].partition("\n\n")[0].splitlines()
    measured = (ROOT / "benchmarks" / "results" / source).read_text(encoding="utf-8")
    assert len(rows) >= 5
    assert set(rows) <= set(measured.splitlines())


def test_nanoseconds_a_parameter_are_those_measured() -> None:
    """On README, at a million parameters; HyperAdam2's and Adam's are those of one large matrix,
    side by side in one run."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| nanoseconds of a step a parameter .*$", readme, flags=re.MULTILINE)
    two, one, adam = re.findall(r"\| ([\d.]+)<!--=", row)
    measured = (ROOT / "benchmarks" / "results" / "step.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in measured.splitlines()]
    million = {row[1]: row[4] for row in reversed(rows) if len(row) == 8}
    assert one == million["kernel avx512"]
    matrices = (ROOT / "benchmarks" / "results" / "matrices.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in matrices.splitlines()]
    (names,) = (row for row in rows if "Adam fused" in row)
    (found,) = (dict(zip(names, row, strict=True)) for row in rows if "1024 × 1024" in row)
    assert float(two) == round(float(found["HyperAdam2 avx512"]), 1)
    assert float(adam) == round(float(found["Adam fused"]), 1)


def test_bytes_a_parameter_are_what_is_kept() -> None:
    """On README, and on the two pages that have them."""
    kept = []
    for make in (hyperadam.HyperAdam2, hyperadam.HyperAdam, torch.optim.Adam):
        p = torch.nn.Parameter(torch.ones(100_000))
        p.grad = torch.ones_like(p)
        opt = make([p])
        opt.step()
        state = [x for x in opt.state[p].values() if torch.is_tensor(x)]
        kept.append(round(sum(x.numel() * x.element_size() for x in state) / p.numel()))
    two, one, adam = kept
    says = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
    assert f"| bytes of state a parameter | {two} | {one} | {adam} |" in says["README.md"]
    for name, size in {"Adam": adam, "`HyperAdam2`": two, "`HyperAdam`": one}.items():
        assert f"| {name} | {size} |" in says["choosing.md"]
        assert f"| {name} | {size // 4} | {size} |" in says["memory.md"]


def test_numbers_without_a_source_are_found() -> None:
    text = "It is at .25, or 3.1 ± .2, in 12 of 20 and 7 %, with `0.02` and [a](b.md#1.5)."
    assert unquoted(text) == [".25", "3.1", ".2", "12 of 20", "7 %"]
    assert unquoted("<!-- made: table -->\n.5\n<!-- end --> .301<!--= mnist-mlp adam-->") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mnist-mlp lion", "there is no result of lion on mnist-mlp"),
        ("paper mnist-mlp sgd", "the paper has no final_loss of sgd"),
        ("mnist-mlp adam test_loss", "test_loss was not measured for adam"),
        ("is mnist-mlp adam sgd test_loss", "test_loss was not measured"),
    ],
)
def test_a_quote_of_nothing_is_refused(words: str, message: str, numbers: Numbers) -> None:
    with pytest.raises(ValueError, match=message):
        quote(words.split(), ".000", numbers)
    with pytest.raises(ValueError, match="no standard error"):
        quote(["cifar10-cnn2", "adam", "10000"], ".000 ± .000", numbers)
