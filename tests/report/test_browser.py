"""The paper's page in a real browser: no error, toggles, axes, zoom, keyboard, a phone's width. Skipped where there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tests.browser
from hyperadam.report.paper import document
from hyperadam.report.render import page
from tests.browser import browser, resize, wait

from .synthetic import ACTIVATIONS, bare, loaded, results

webdriver = tests.browser.webdriver
pytestmark = tests.browser.needed

#: One of several charts, the first.
FIRST = "figure[data-panel=activations-mnist-mlp-elu-100]"
#: What the first chart draws: its curves and the labels of its axes.
DRAWN = f"return document.querySelector('{FIRST} > svg').innerHTML"

Run = Callable[..., Any]
__all__ = ["browser"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with two experiments; one curve of the second explodes."""
    second = bare(
        name="long", title="Longer", tasks=("sine-lstm-2", "mnist-cnn2"), steps=(2000,), runs=3
    )
    longer = results(second)
    longer[0].losses.mul_(torch.logspace(0, 8, 2000))
    diverged = {("mnist-mlp-elu", "dm"): 7}
    third = bare(
        name="timed", title="Timed", tasks=("mnist-cnn1",), optimizers=("adam", "hyperadam", "dm")
    )
    timed = [
        replace(
            one,
            measures={
                "seconds_to_loss": torch.tensor([seconds]),
                "steps_to_loss": torch.tensor([50.0]),
            },
        )
        for one, seconds in zip(results(third), (1.0, 2.0, math.inf), strict=True)
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(
        page(
            document(
                [
                    (ACTIVATIONS, loaded(results(ACTIVATIONS, (), diverged))),
                    (second, loaded(longer)),
                    (third, loaded(timed)),
                ]
            )
        ),
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.fixture
def run(browser: Any, address: str) -> Run:
    """The page, loaded anew with its first chart in sight; a function that runs JavaScript in it."""
    resize(browser, 1280)
    browser.get(address)
    browser.execute_script(f"document.querySelector('{FIRST}').scrollIntoView()")
    wait(browser, f"return document.querySelector('{FIRST} > svg .line') !== null")
    return browser.execute_script


def click(run: Run, text: str) -> None:
    run(
        f"[...document.querySelectorAll('{FIRST} button')].find(b => b.textContent.startsWith(arguments[0])).click()",
        text,
    )


def drag(browser: Any, *places: tuple[int, int]) -> None:
    """Press at the first place, relative to the middle of the first chart, and let go at the last."""
    chart = browser.find_element("css selector", f"{FIRST} > svg")
    actions = (
        webdriver.ActionChains(browser, duration=20)
        .move_to_element_with_offset(chart, *places[0])
        .click_and_hold()
    )
    for place in places[1:]:
        actions.move_to_element_with_offset(chart, *place)
    actions.release().perform()


def test_it_loads_without_an_error(run: Run, browser: Any) -> None:
    run("document.querySelectorAll('details').forEach(d => d.open = true)")
    for number in range(run("return document.querySelectorAll('figure.chart').length")):
        run("document.querySelectorAll('figure.chart')[arguments[0]].scrollIntoView()", number)
        wait(
            browser,
            f"return document.querySelectorAll('figure.chart')[{number}].querySelectorAll('.line[data-name]').length >= 3",
        )
    assert browser.get_log("browser") == []
    assert run("return document.querySelectorAll('figure.chart').length") == 7
    assert not run(
        "return [...document.querySelectorAll('path')].some(p => /NaN|Infinity/.test(p.getAttribute('d')))"
    )


def test_the_legend_hides_and_shows(run: Run) -> None:
    count = f"return document.querySelectorAll('{FIRST} > svg .line').length"
    there = f"return document.querySelector('{FIRST} > svg .line[data-name=adam]') !== null"
    legend = f"[...document.querySelectorAll('{FIRST} .legend button')].find(b => b.textContent === 'tuned Adam')"
    assert run(count) == 4, "ours, tuned Adam, the untrained start, the best other"
    names = f"return [...document.querySelectorAll('{FIRST} > svg .line')].map(p => p.dataset.name)"
    assert {"hyperadam", "adam", "adam-init"} < set(run(names))
    run(f"{legend}.click()")
    assert not run(there)
    assert run(count) == 3
    assert run(f"return {legend}.getAttribute('aria-pressed')") == "false"
    run(f"{legend}.click()")
    assert run(there)
    click(run, "all on")
    assert run(count) == 11
    click(run, "all on")
    assert run(count) == 0


def test_the_curve_pointed_at_is_in_front(run: Run, browser: Any) -> None:
    last = f"return [...document.querySelectorAll('{FIRST} > svg .line')].at(-1).dataset.name"
    button = f"[...document.querySelectorAll('{FIRST} .legend button')].find(b => b.textContent === 'untrained HyperAdam')"
    assert run(last) != "adam-init"
    run(f"{button}.dispatchEvent(new Event('pointerenter'))")
    assert run(last) == "adam-init"
    assert run(f"return document.querySelectorAll('{FIRST} .line.front').length") == 1
    run(f"{button}.dispatchEvent(new Event('pointerleave'))")
    assert run(f"return document.querySelectorAll('{FIRST} .line.front').length") == 0


def test_the_numbers_can_be_downloaded(run: Run) -> None:
    run(
        "window.saved = []; URL.createObjectURL = b => { window.blob = b; return 'data:,' };"
        "HTMLAnchorElement.prototype.click = function () { saved.push(this.download) }"
    )
    click(run, "CSV")
    text = run("return window.blob.text()")
    head, first, *rest = text.splitlines()
    assert len(rest) == 99
    assert head.startswith(
        'step,tuned SGD,"tuned SGD, low","tuned SGD, high",tuned SGD with momentum'
    )
    assert len(first.split(",")) == 1 + 3 * 11
    run("document.querySelector('button.save').click()")
    assert run("return window.blob.text()").startswith("optimizer,")
    assert run("return saved") == ["activations-mnist-mlp-elu-100.csv", "table-1.csv"]


@pytest.mark.parametrize("name", ["log x", "log y", "smooth", "band", "zoom in"])
def test_buttons_change_the_drawing(run: Run, name: str) -> None:
    before = run(DRAWN)
    click(run, name)
    after = run(DRAWN)
    assert after != before
    click(run, "zoom out" if name == "zoom in" else name)
    assert run(DRAWN) == before


def test_a_rectangle_zooms_and_a_double_click_resets(run: Run, browser: Any) -> None:
    before = run(DRAWN)
    drag(browser, (-100, -60), (0, 0), (100, 60))
    assert run("return document.querySelector('.brush')") is None
    run("document.activeElement.blur()")

    labels = f"return [...document.querySelectorAll('{FIRST} > svg .axes text')].map(t => t.textContent).join()"
    zoomed = run(labels)
    chart = browser.find_element("css selector", f"{FIRST} > svg")
    webdriver.ActionChains(browser).double_click(chart).perform()
    assert run(labels) != zoomed
    webdriver.ActionChains(browser, duration=20).move_to_element(
        browser.find_element("css selector", f"{FIRST} figcaption")
    ).perform()
    run(f"document.querySelector('{FIRST} > svg').blur()")
    assert run(DRAWN) == before


def test_what_explodes_leaves_the_chart(run: Run, browser: Any) -> None:
    chart = "figure[data-panel=long-sine-lstm-2-2000]"
    run("document.querySelectorAll('details').forEach(d => d.open = true)")
    run(f"document.querySelector('{chart}').scrollIntoView()")
    wait(browser, f"return document.querySelector('{chart} > svg .line') !== null")
    run(
        f"[...document.querySelectorAll('{chart} button')].find(b => b.textContent.startsWith('all')).click()"
    )
    drawn = f"document.querySelector('{chart} > svg .line[data-name=%s]').getBBox()"
    frame = f"document.querySelector('{chart} > svg .frame').getBBox()"
    height, top = (run(f"return {frame}.{side}") for side in ("height", "y"))
    assert run(f"return {drawn % 'sgd'}.y") < top, "not cut off"
    assert run(f"return {drawn % 'adam'}.height") > height / 2, "too flat to be seen"


def test_seconds_stand_beside_steps(run: Run, browser: Any) -> None:
    chart = "figure[data-panel=timed-mnist-cnn1-100]"
    run(f"document.querySelector('{chart}').scrollIntoView()")
    wait(browser, f"return document.querySelector('{chart} > svg .line') !== null")
    label = f"return [...document.querySelectorAll('{chart} .axes text')].map(t => t.textContent)"
    lines = f"return document.querySelectorAll('{chart} > svg .line').length"
    assert "step" in run(label)
    assert run(lines) == 3
    run(
        f"[...document.querySelectorAll('{chart} button')].find(b => b.textContent === 'seconds').click()"
    )
    assert "seconds of processor time" in run(label)
    assert run(lines) == 2, "one never gets there, and its time is not known"
    ends = (
        f"return [...document.querySelectorAll('{chart} > svg .line')].map(p => p.getBBox().width)"
    )
    assert max(run(ends)) > 1.8 * min(run(ends)), "one takes twice as long as the other"
    assert run(f"return document.querySelectorAll('{FIRST} button').length") > 0
    times = "return [...document.querySelectorAll('.tools')].filter(t => t.textContent.includes('seconds')).length"
    assert run(times) == 1, "only where times are known"


def test_values_are_read_with_the_pointer_and_with_keys(run: Run, browser: Any) -> None:
    reading = f"return document.querySelector('{FIRST} output').textContent"
    value = (
        f"return document.querySelector('{FIRST} .legend button[aria-pressed=true] b').textContent"
    )
    chart = browser.find_element("css selector", f"{FIRST} > svg")
    webdriver.ActionChains(browser, duration=20).move_to_element(chart).perform()
    assert run(reading).startswith("step ")
    assert float(run(value)) > 0
    chart.send_keys("\ue011")  # Home
    assert re.match(r"step 1: .*tuned Adam \d", run(reading))
    before = run(DRAWN)
    chart.send_keys("+")
    assert run(DRAWN) != before
    chart.send_keys("0")
    assert run(DRAWN) == before
    run("arguments[0].blur()", chart)
    assert run(reading) == ""


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(run: Run, browser: Any, width: int) -> None:
    resize(browser, width)
    run("document.querySelectorAll('details').forEach(d => d.open = true)")
    for element in ("#claims", "nav", FIRST, "#settings"):
        run("document.querySelector(arguments[0]).scrollIntoView()", element)
    wait(
        browser,
        f"return document.querySelector('{FIRST} > svg').getBoundingClientRect().width < {width}",
    )
    assert run("return document.documentElement.scrollWidth") <= width
    wide = run(
        "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .hidden, .skip, svg') "
        "&& e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_labels_of_axes_do_not_overlap(run: Run, browser: Any) -> None:
    for width in (360, 1280):
        resize(browser, width)
        wait(
            browser,
            f"return document.querySelector('{FIRST} > svg').getBoundingClientRect().width < {width}",
        )
        for axis in ("log x", "log y", "log x"):
            click(run, axis)
            overlaps = run(
                f"const boxes = [...document.querySelectorAll('{FIRST} .axes text')].map(t => t.getBoundingClientRect());"
                "return boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right"
                " && a.top < b.bottom && b.top < a.bottom))"
            )
            assert not overlaps, (width, axis)


def test_both_schemes_are_legible(run: Run, browser: Any) -> None:
    colours = "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    seen = []
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        seen.append(run(colours))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen[0] != seen[1]
    assert all(text != behind for text, behind in seen)
