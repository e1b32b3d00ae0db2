"""Statistics and tables: what is compared with what, what is marked, and that divergence shows."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from hyperadam.report import Comparison, compare, summarize
from hyperadam.report.comparison import loss, records
from hyperadam.report.statistics import Summary, written
from hyperadam.report.tables import Cell, Grid, as_csv, as_lines, as_markdown, texts

from ..experiments.tiny import result


def test_mean_and_standard_error() -> None:
    summary = summarize(result([1.0, 2.0, 3.0, 4.0]))
    assert summary.mean == 2.5
    assert summary.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert (summary.runs, summary.diverged) == (4, 0)
    assert math.isnan(summarize(result([1.0])).standard_error)


def test_a_diverged_run_is_never_left_out() -> None:
    summary = summarize(result([0.1, math.inf, 0.1]))
    assert (summary.mean, summary.diverged) == (math.inf, 1)
    assert loss(summary) == "diverged in 1 of 3"


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (Summary(0.24901, 0.0021, 20, 0), "0.2490 ± 0.0021"),
        (Summary(12.3, 1.26, 20, 0), "12.3 ± 1.3"),
        (Summary(1234.5, 260.0, 20, 0), "1234 ± 260"),
        (Summary(0.5, math.nan, 1, 0), "0.5"),
        (Summary(2.0, 0.0, 3, 0), "2"),
    ],
)
def test_digits_follow_the_standard_error(summary: Summary, text: str) -> None:
    assert loss(summary) == text


def table() -> Comparison:
    return compare(
        [
            result([0.3, 0.31, 0.29], "adam"),
            result([0.2, 0.21, 0.19], "hyperadam"),
            result([math.inf, 0.1, 0.1], "sgd"),
            result([0.3, 0.31, 0.29], "adam", task="other"),
            result([0.5, 0.52, 0.48], "hyperadam", task="other"),
        ]
    )


def test_the_best_of_each_task_is_marked() -> None:
    assert [row.best for row in table().rows] == [False, True, False, True, False]
    lines = as_lines(table().grid())
    assert ["*" in line[3] for line in lines] == [False, True, False, True, False]
    assert [line[0] for line in lines] == ["bowl", "", "", "other", ""], "a task is named once"
    assert lines[2][3] == "diverged in 1 of 3"
    assert lines[2][4] == "diverged in 1 of 3, the other in 0 (p = 1)"
    assert lines[1][4] == "33.3 % lower (p < .001)"
    markdown = as_markdown(table().grid()).splitlines()
    assert markdown[1] == "| --- | --- | --- | --- | --- |"
    assert "**0.2000 ± 0.0058**" in markdown[3]
    assert sum("**" in line for line in markdown) == 2


def test_records_are_json_and_csv() -> None:
    found = records(table())
    json.dumps(found, allow_nan=False)
    assert found[2]["final_loss"] is None
    assert found[1]["difference"] == pytest.approx(-0.1)
    assert found[1]["p"] == pytest.approx(0, abs=1e-6)
    assert found[1]["pairs"] == 3
    text = as_csv(list(found[0]), [list(record.values()) for record in found])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["optimizer"] for row in rows] == ["adam", "hyperadam", "sgd", "adam", "hyperadam"]
    assert float(rows[1]["final_loss"]) == pytest.approx(0.2)


def test_without_the_reference_there_is_no_comparison() -> None:
    alone = compare([result([0.3, 0.2], "sgd"), result([0.1, 0.2], "hyperadam")])
    assert alone.reference is None
    assert alone.grid().header[-1] == "final loss"
    other = compare([result([0.3, 0.2], "sgd"), result([0.1, 0.2], "hyperadam")], "sgd")
    assert other.grid().header[-1] == "against sgd"
    single = compare([result([0.3, 0.2], "adam")])
    assert single.reference is None
    assert not single.rows[0].best


def test_a_cell_as_markdown() -> None:
    row = [
        *texts("a|b", "=1"),
        Cell("0.5", best=True, paper="0.6"),
        Cell("0.51", tied=True),
        Cell("diverged in 1 of 3", rest="0.4", kind="diverged"),
    ]
    grid = Grid("t", ["x", "<b>", "", "", ""], [row])
    head, _, line = as_markdown(grid).splitlines()
    assert head == "| x | &lt;b&gt; |  |  |  |"
    assert line == r"| a\|b | =1 | **0.5** (0.6) | 0.51 ≈ | diverged in 1 of 3, else 0.4 |"
    assert as_csv(["a"], [["=1"], [2.5]]) == "a\n'=1\n2.5\n"


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (0.24897, 0.0021, "0.2490 ± 0.0021"),
        (2.301110, 0.000055, "2.3011 ± 0.0001"),
        (123.4, 12.0, "123 ± 12"),
        (0.0, 0.5, "0.00 ± 0.50"),
        (0.002312, 0.000004, "0.0023120 ± 0.0000040"),
        (1.5, 0.0, "1.5"),
        (1.5, float("nan"), "1.5"),
        (2562553229.0, 2562548009.0, "2.6e9 ± 2.6e9"),
        (3.2e12, float("nan"), "3.2e12"),
    ],
)
def test_numbers_have_no_more_digits_than_they_bear(number: float, error: float, text: str) -> None:
    assert written(number, error) == text
