"""The picture of the valley: a real run, whose arrows are the steps that were made, and a page that draws it and moves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hyperadam
import tests.browser
from hyperadam.inside import valley
from tests.browser import browser, resize, wait

__all__ = ["browser"]


@pytest.mark.parametrize("kind", [hyperadam.HyperAdam, hyperadam.HyperAdam2])
def test_the_arrows_are_the_step(kind: Any) -> None:
    made = valley.walk("ours", lambda p: kind(p, total_steps=30), 30)
    assert made.arrows is not None
    assert made.betas is not None
    assert made.arrows.shape == (30, made.betas.shape[1], 2)
    torch.testing.assert_close(made.arrows.sum(1), made.places.diff(dim=0), atol=1e-6, rtol=1e-3)
    again = valley.walk("ours", lambda p: kind(p, total_steps=30), 30)
    assert torch.equal(again.places, made.places)


def test_all_meet_the_same_start_and_adam_is_tuned() -> None:
    ours, _, tuned, slow = valley.paths(60)
    assert torch.equal(ours.places[0], tuned.places[0])
    assert tuned.name in {f"tuned Adam ({rate:g})" for rate in valley.RATES}
    assert tuned.arrows is None
    ends = [float(valley.loss(path.places[-1])) for path in (ours, tuned, slow)]
    assert ends[2] == max(ends)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return valley.write_valley(tmp_path_factory.mktemp("valley") / "valley.html")


def test_the_page_loads_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|@import", text)
    found = re.search(r"const data = (.*);", text)
    assert found
    data = json.loads(found[1])
    assert len(data["paths"]) == 4
    assert len(text) < 250_000


PIXELS = (
    "const c = document.getElementById('picture');"
    "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
    "let sum = 0; for (let k = 0; k < d.length; k += 4) sum = (sum * 31 + d[k] * 7 + d[k + 1]) % 1e9; return sum"
)


@pytest.mark.usefixtures("browser")
class TestInABrowser:
    pytestmark = tests.browser.needed

    @pytest.fixture
    def run(self, browser: Any, page: Path) -> Any:
        resize(browser, 1000)
        browser.get(page.as_uri())
        wait(browser, "return document.getElementById('picture').width > 100")
        return browser.execute_script

    def test_it_draws_and_moves(self, run: Any, browser: Any) -> None:
        first = run("return document.getElementById('time').value")
        wait(browser, f"return Number(document.getElementById('time').value) > {first} + 3")
        run("document.getElementById('play').click()")
        assert run("return document.getElementById('play').textContent") == "Play"
        still = run(PIXELS)
        assert run(PIXELS) == still, "it stands"
        scrub = (
            "const t = document.getElementById('time'); t.value = 150; "
            "t.dispatchEvent(new Event('input'))"
        )
        run(scrub)
        assert run(PIXELS) != still
        assert run("return document.getElementById('step').textContent") == "step 450"
        ours = run(PIXELS)
        run(
            "const w = document.getElementById('whose'); w.value = 1; w.dispatchEvent(new Event('change'))"
        )
        assert run(PIXELS) != ours, "the lens is on the other"
        assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]

    def test_its_valley_is_ours(self, run: Any) -> None:
        for x, y in ((0.3, -0.2), (-1.3, 1.2)):
            assert run(f"return loss({x}, {y})") == pytest.approx(
                float(valley.loss(torch.tensor([x, y]))), rel=1e-5
            )

    def test_it_fits_a_phone(self, run: Any, browser: Any) -> None:
        resize(browser, 390)
        wait(browser, "return document.getElementById('picture').clientWidth < 390")
        assert run("return document.documentElement.scrollWidth") <= 390
