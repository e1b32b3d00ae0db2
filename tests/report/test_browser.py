"""The paper's page in a real browser: no error, toggles, axes, zoom, keyboard, a phone's width. Skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hyperadam.report.paper import document
from hyperadam.report.render import page

from .synthetic import ACTIVATIONS, bare, loaded, results

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed (pip install selenium)"
)
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no chromium (Debian: apt-get install chromium)"
    ),
    pytest.mark.skipif(
        DRIVER is None, reason="there is no chromedriver (Debian: apt-get install chromium-driver)"
    ),
]

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
)
#: One of several charts, the first.
FIRST = "figure[data-panel=activations-mnist-mlp-elu-100]"
#: What the first chart draws: its curves and the labels of its axes.
DRAWN = f"return document.querySelector('{FIRST} > svg').innerHTML"

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with two experiments; one curve of the second explodes."""
    second = bare(
        name="long", title="Longer", tasks=("sine-lstm-2", "mnist-cnn2"), steps=(2000,), runs=3
    )
    longer = results(second)
    longer[0].losses.mul_(torch.logspace(0, 8, 2000))
    diverged = {("mnist-mlp-elu", "dm"): 7}
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(
        page(
            document(
                [
                    (ACTIVATIONS, loaded(results(ACTIVATIONS, (), diverged))),
                    (second, loaded(longer)),
                ]
            )
        ),
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with a profile of its own, without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # the driver's path is given: selenium would otherwise look for one to download
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


def resize(browser: Any, width: int, height: int = 900) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture
def run(browser: Any, address: str) -> Run:
    """The page, loaded anew with its first chart in sight; a function that runs JavaScript in it."""
    resize(browser, 1280)
    browser.get(address)
    browser.execute_script(f"document.querySelector('{FIRST}').scrollIntoView()")
    wait(browser, f"return document.querySelector('{FIRST} > svg .line') !== null")
    return browser.execute_script


def wait(browser: Any, condition: str, seconds: float = 20) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, seconds, 0.05).until(
        lambda found: found.execute_script(condition), condition
    )


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
            f"return document.querySelectorAll('figure.chart')[{number}].querySelectorAll('.line[data-name]').length === 11",
        )
    assert browser.get_log("browser") == []
    assert run("return document.querySelectorAll('figure.chart').length") == 6
    assert not run(
        "return [...document.querySelectorAll('path')].some(p => /NaN|Infinity/.test(p.getAttribute('d')))"
    )


def test_the_legend_hides_and_shows(run: Run) -> None:
    count = f"return document.querySelectorAll('{FIRST} > svg .line').length"
    there = f"return document.querySelector('{FIRST} > svg .line[data-name=adam]') !== null"
    legend = f"[...document.querySelectorAll('{FIRST} .legend button')].find(b => b.textContent === 'adam')"
    assert run(count) == 11
    run(f"{legend}.click()")
    assert not run(there)
    assert run(count) == 10
    assert run(f"return {legend}.getAttribute('aria-pressed')") == "false"
    run(f"{legend}.click()")
    assert run(there)
    click(run, "all on")
    assert run(count) == 0
    click(run, "all on")
    assert run(count) == 11


@pytest.mark.parametrize("name", ["log x", "log y", "band", "zoom in"])
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
    wait(browser, f"return document.querySelector('{chart} > svg .line[data-name=sgd]') !== null")
    drawn = f"document.querySelector('{chart} > svg .line[data-name=%s]').getBBox()"
    frame = f"document.querySelector('{chart} > svg .frame').getBBox()"
    height, top = (run(f"return {frame}.{side}") for side in ("height", "y"))
    assert run(f"return {drawn % 'sgd'}.y") < top, "not cut off"
    assert run(f"return {drawn % 'adam'}.height") > height / 2, "too flat to be seen"


def test_values_are_read_with_the_pointer_and_with_keys(run: Run, browser: Any) -> None:
    reading = f"return document.querySelector('{FIRST} output').textContent"
    value = f"return document.querySelector('{FIRST} .legend b').textContent"
    chart = browser.find_element("css selector", f"{FIRST} > svg")
    webdriver.ActionChains(browser, duration=20).move_to_element(chart).perform()
    assert run(reading).startswith("step ")
    assert float(run(value)) > 0
    chart.send_keys("\ue011")  # Home
    assert run(reading).startswith("step 1: sgd ")
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
    for element in ("#headline", "#claims", FIRST, "#settings"):
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
