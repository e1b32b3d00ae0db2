"""README and the findings say what the results say: every number, every verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hyperadam.experiments.paper.runner import Place, load
from hyperadam.experiments.paper.specs import EXPERIMENTS
from hyperadam.report.quotes import BLOCK, QUOTE, Numbers, quote, refresh, unquoted

ROOT = Path(__file__).parents[2]
#: What the prose itself defines: how sure, and how large, a difference has to be.
DEFINED = {"95 %", "1 %"}


@pytest.fixture(scope="module")
def numbers() -> Numbers:
    place = Place(ROOT / "results")
    return Numbers([(e, load(e, place.store)) for e in EXPERIMENTS.values()])


def findings() -> str:
    return (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


def readme() -> str:
    """The part about the paper's tasks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text[text.index("## HyperAdam on the paper's tasks") : text.index("## How fast")]


@pytest.mark.parametrize("text", [readme, findings])
def test_every_number_is_that_of_the_results(text: object, numbers: Numbers) -> None:
    written = text()  # type: ignore[operator]
    assert len(QUOTE.findall(written)) > 20
    assert written.count("<!--=") == len(QUOTE.findall(written)), "a comment that quotes nothing"
    assert refresh(written, numbers) == written, (
        "numbers have changed: hyperadam report --quote README.md docs/findings.md"
    )


@pytest.mark.parametrize("text", [readme, findings])
def test_no_number_is_left_to_itself(text: object) -> None:
    assert set(unquoted(text())) <= DEFINED  # type: ignore[operator]


def test_a_wrong_number_is_seen(numbers: Numbers) -> None:
    """Each number and verdict in turn, made wrong."""
    written = findings()
    for found in QUOTE.finditer(written):
        if found["words"] == "not in results":
            continue
        wrong = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), found["text"])
        if wrong == found["text"]:
            wrong = "otherwise"
        piece = found[0].replace(found["text"], wrong, 1)
        assert refresh(piece, numbers) == found[0]
    made = BLOCK.search(written)
    assert made is not None
    assert refresh(made[0].replace("undecided", "holds", 1), numbers) == made[0]


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
