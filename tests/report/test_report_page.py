"""The report opened and clicked through in headless Chromium: it works, from a file, without asking for anything."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.record.test_record import write
from tests.report.test_report import made
from tests.report.test_report_measured import as_if_measured
from zbench.record.record import read
from zbench.report import __main__ as report

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LAPTOP, PHONE = (1366, 768), (390, 844)
Page = Any


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ring and zeppelin on two workloads, and hydraulis, whose plans have pipelines."""
    folder = tmp_path_factory.mktemp("page")
    for workload in ("prolong64k", "wikipedia"):
        made(folder, "system=zeppelin", f"workload={workload}")
    record = made(folder, "system=hydraulis", "workload=wikipedia", "baseline=null")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["report", record, "-o", str(folder / "page.html")])
        assert report.main() == 0
    return f"file://{folder / 'page.html'}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page; whatever it asks of a network, or complains of, fails the test."""
    width, height = getattr(request, "param", LAPTOP)
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else wrong.append(asked.url)
    )
    page.goto(address)
    page.wait_for_selector("#timeline .bars")
    yield page
    assert wrong == []
    assert page.locator("[src^='http'], [href^='http'], [src^='//'], [href^='//']").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def column(page: Page, number: int) -> list[str]:
    found: list[str] = page.locator(f"#table tbody tr td:nth-child({number + 1})").all_inner_texts()
    return found


def titles(page: Page) -> list[str]:
    return [text.split(" ▴")[0].split(" ▾")[0] for text in page.locator("#table th").all_inner_texts()]


@pytest.mark.parametrize("opened", [LAPTOP, PHONE], indirect=True, ids=["laptop", "phone"])
def test_every_chart_is_drawn(opened: Page) -> None:
    for name in ("speedup", "mfu", "shares", "lines", "ranks", "nics", "timeline", "plan"):
        assert opened.locator(f"#{name} .main-svg").count() > 0, name
    assert "SIMULATED" in opened.locator("#notes").inner_text()
    assert "made again from its configuration" in opened.locator("#again").inner_text()


def test_the_filter_leaves_rows_and_charts_that_match(opened: Page) -> None:
    assert column(opened, 0) == ["ring", "zeppelin", "ring", "zeppelin", "hydraulis"]
    opened.fill("#filter", "ZEPP wiki")
    assert column(opened, 0) == ["zeppelin"]
    assert opened.locator("#count").inner_text() == "1 of 5 runs"
    assert opened.evaluate("document.getElementById('mfu').data.flatMap((trace) => trace.y)") == ["zeppelin"]
    opened.fill("#filter", "nothing like this")
    assert column(opened, 0) == []
    assert opened.locator("#mfu .empty").inner_text() == "No run here has this figure."
    opened.fill("#filter", "")
    assert opened.locator("#mfu .empty").count() == 0


def test_headings_sort_by_keyboard_both_ways(opened: Page) -> None:
    at = titles(opened).index("MFU")
    opened.locator("#table th button").nth(at).focus()
    opened.keyboard.press("Enter")
    values = [float(text.split()[0]) for text in column(opened, at)]
    assert values == sorted(values, reverse=True)
    assert opened.locator("#table th").nth(at).get_attribute("aria-sort") == "descending"
    opened.keyboard.press("Enter")  # the focus stayed on the heading
    values = [float(text.split()[0]) for text in column(opened, at)]
    assert values == sorted(values)


def test_a_speed_up_over_another_system(opened: Page) -> None:
    opened.select_option("#over", "zeppelin")
    points = opened.evaluate("document.getElementById('speedup').data.map((t) => t.y.map((name, i) => [name, t.x[i]]))")
    found = dict(pair for trace in points for pair in trace)
    assert found["zeppelin"] == 1
    assert found["ring"] < 1
    assert "hydraulis" in found


def test_a_run_is_opened_and_its_pipelines_drawn(opened: Page) -> None:
    opened.locator("#table tbody tr:nth-child(5) button").click()
    assert "hydraulis" in opened.locator("#run option:checked").inner_text()
    assert opened.locator("tr.open td").first.inner_text() == "hydraulis"
    assert "all layers of a stage" in opened.locator("#timelinehint").inner_text()
    opened.select_option("#number", "1")
    assert "Step 1 is not in this page" in opened.locator("#again").inner_text()
    assert "--steps 1" in opened.locator("#again").inner_text()
    assert opened.locator("#timelinebox").is_hidden()


def window(page: Page) -> tuple[float, float]:
    low, high = page.evaluate("document.getElementById('timeline').layout.xaxis.range")
    return low, high


def test_the_timeline_zooms_and_names_what_is_pointed_at(opened: Page) -> None:
    begin, end = window(opened)
    opened.click("[data-zoom=in]")
    low, high = window(opened)
    assert high - low == pytest.approx((end - begin) / 2)
    opened.click("[data-zoom=left]")
    assert window(opened)[0] < low
    opened.click("[data-zoom=all]")
    assert window(opened) == pytest.approx((begin, end))
    opened.locator("#timeline .bars .point path").first.hover(force=True)
    opened.wait_for_function("document.getElementById('event').textContent.includes('micro-batch 0')")
    assert opened.locator("#timeline .hoverlayer .hovertext").count() > 0


def test_the_timeline_is_reached_by_keys(opened: Page) -> None:
    """An attend of a ring tells its blocks, sequences and pass; a NIC's transfer where it goes."""
    opened.locator("#timeline").focus()
    opened.keyboard.press("ArrowRight")
    assert "linear forward, layer 0, micro-batch 0\nGPU 0" in opened.locator("#event").inner_text()
    opened.keyboard.press("ArrowRight")
    told = opened.locator("#event").inner_text()
    assert told.startswith("attend forward, layer 0, micro-batch 0\nGPU 0: ")
    assert "block" in told
    assert "sequence" in told
    cursor = "document.getElementById('timeline').layout.shapes.map((shape) => shape.y0)"
    assert opened.evaluate(cursor) == [-0.5]
    for _ in range(40):
        opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowUp")
    told = opened.locator("#event").inner_text()
    assert "NIC" in told
    assert " from GPU " in told
    assert opened.evaluate(cursor)[0] > 0
    before = window(opened)
    opened.keyboard.press("+")
    assert window(opened)[1] - window(opened)[0] < before[1] - before[0]
    opened.keyboard.press("0")
    assert window(opened)[0] == 0


def test_parameters_and_gradients_are_drawn(opened: Page) -> None:
    """In a row a node, and as waiting of the GPUs."""
    assert "simulated" in opened.locator("#timelinetitle").inner_text()
    drawn = opened.evaluate(
        "document.getElementById('timeline').data.map((t) => [t.name, [...new Set(t.y)].length, t.marker.color])"
    )
    rows, colours = {name: rows for name, rows, _ in drawn}, [colour for *_, colour in drawn]
    assert rows["gather parameters"] == rows["reduce gradients"] == 2
    assert rows["waiting for gradients"] == rows["optimizer"] == 16
    assert len(set(colours)) >= len(colours) - 1  # NICs' keys and GPUs' work are on rows of their own
    opened.select_option("#node", "0")
    assert (
        opened.evaluate("document.getElementById('timeline').layout.yaxis.ticktext").count("parameters, gradients") == 1
    )


def test_a_measured_step_is_its_trace(browser: Any, tmp_path: Path) -> None:
    (run,) = read(made(tmp_path, "system=ring", "workload=prolong64k", "steps=1"))[0]
    as_if_measured(run, tmp_path / "t.json")
    write(tmp_path / "measured.jsonl", run.start, *run.steps, run.end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["report", str(tmp_path / "measured.jsonl"), "-o", str(tmp_path / "page.html")])
        assert report.main() == 0
    page = browser.new_page()
    page.goto(f"file://{tmp_path / 'page.html'}")
    page.wait_for_selector("#timeline .bars")
    assert page.locator("#notes").is_hidden()
    assert page.locator("#timelinetitle").inner_text() == "Timeline of GPUs and NICs (measured)"
    assert "this step's own trace" in page.locator("#again").inner_text()
    page.locator("#timeline").focus()
    page.keyboard.press("ArrowRight")
    told = page.locator("#event").inner_text()
    assert told.startswith("attend forward, layer 0, micro-batch 0\nGPU 0: 1 ms from ")
    assert "\nsequence " in told
    page.keyboard.press("ArrowDown")
    assert page.locator("#event").inner_text().startswith("message ")
    page.close()


def test_a_node_is_shown_by_itself(opened: Page) -> None:
    opened.select_option("#node", "1")
    ticks = opened.evaluate("document.getElementById('timeline').layout.yaxis.ticktext")
    assert ticks[0] == "GPU 8"
    assert len(ticks) == 8 + 2 * 4 + 1
    assert set(opened.evaluate("document.getElementById('plan').data.flatMap((t) => t.y)")) == set(range(8, 16))


def test_no_button_sends_a_chart_anywhere(opened: Page) -> None:
    names = opened.evaluate("[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)")
    assert "Pan" in names
    assert not [name for name in names if "share" in name.lower() or "cloud" in name.lower()]


def test_dark_and_light(opened: Page) -> None:
    def ground() -> str:
        found: str = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    light = ground()
    opened.click("#theme")
    assert ground() != light
    assert opened.inner_text("#theme") == "Light"
    drawn = opened.evaluate("document.getElementById('mfu').layout.paper_bgcolor")
    assert drawn == opened.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground').trim()")
    opened.click("#theme")
    assert ground() == light


def test_the_readers_system_says_which_comes_first(browser: Any, address: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    assert page.get_attribute("html", "data-theme") == "dark"
    page.close()
