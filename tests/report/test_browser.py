"""The pages in a real browser: Debian's chromium, headless, driven by selenium, without a network."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ich_mil.dicom.geometry.planes import Edges
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.report.cohort_page import render_cohort, worklist
from ich_mil.report.page import study_file_name
from ich_mil.report.run_page import RunPage, SplitCount, render_run
from ich_mil.report.study_page import render_study
from ich_mil.runs.predictions import BY_INTERVAL, Provenance, Run
from tests.results import MODEL, cohort, maps_of, scan_of

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
if not (CHROMIUM.is_file() and DRIVER.is_file()):
    pytest.skip("Debian's chromium and chromium-driver are not installed", allow_module_level=True)
pytestmark = pytest.mark.browser

from selenium.webdriver.chrome.service import Service  # noqa: E402  after the skip
from selenium.webdriver.common.keys import Keys  # noqa: E402

LONG = "<script>alert(1)</script></script>\" onload='alert(2)' \u202e\u2067 {{ 7 * 7 }} " + "x" * 300
N, MAPPED = 20, 5
EDGES = [*[Edges("R", "L", "A", "P")] * 15, *[Edges("L", "R", "A", "P")] * 4, None]

CONTRASTS = """
const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const parts = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = parts(getComputedStyle(element).backgroundColor);
    if (colour[3] === 1) return colour;
    if (colour[3] !== 0) throw new Error("half-clear ground");
  }
  return [255, 255, 255, 1];
};
const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const found = [];
for (const details of document.querySelectorAll("details")) details.open = true;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || element.closest("script, noscript, title")) continue;
  if (!element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  const colour = parts(element.namespaceURI.includes("svg") ? style.fill : style.color);
  const contrast = colour[3] === 1 ? ratio(light(colour), light(ground(element))) : 0;
  found.push([contrast, walker.currentNode.data.trim()]);
}
return found;
"""


def head(n, size=96):
    """HU (n, size, size) of an ellipse with a ring of bone and a bleed that moves from slice to slice."""
    y, x = np.indices((size, size)) / (size / 2) - 1
    radius = (y / 0.85) ** 2 + (x / 0.7) ** 2
    brain = np.where(radius < 1, np.where(radius < 0.85, 35.0, 900.0), -1000.0)
    hu = np.repeat(brain[None], n, axis=0)
    masks = np.zeros(hu.shape, bool)
    for i in range(12, 18):
        masks[i, 40:60, 30 + i : 50 + i] = True
    hu[masks] = 72
    noise = np.random.default_rng(0).normal(0, 5, hu.shape)
    return (hu + noise).astype(np.int16), masks


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A folder with a study, a hostile study, and a cohort that links to the study."""
    folder = tmp_path_factory.mktemp("pages")
    hu, masks = head(N)
    scan = scan_of(masks)
    maps = maps_of(masks, most=MAPPED, cells=8)
    study = render_study(scan, MODEL, BY_INTERVAL, hu, maps, edges=EDGES)
    hostile = replace(
        scan,
        scan=LONG,
        patient=LONG,
        ledger=tuple(LedgerEntry(LONG, LONG, code, LONG) for code in Code),
        runs=tuple(Run(i, i, 0.3) for i in range(0, N, 2)),
    )
    model = Provenance(LONG, LONG, LONG, LONG, LONG, LONG)
    texts = {"PatientName": LONG, **{f"Text{i}": LONG for i in range(12)}}
    tall, wide = (
        render_study(hostile, model, LONG, np.repeat(hu, 2, axis=axis), maps, edges=EDGES, texts=texts)
        for axis in (1, 2)
    )
    results = cohort(12)
    links = {one.scan: study_file_name(one.scan) for one in results.scans}
    (folder / "index.html").write_text(render_cohort(results, links, title="Studies of a night"))
    (folder / links[worklist(results)[0].scan]).write_text(study)
    run = RunPage(
        "run",
        MODEL,
        "seed: 0",
        {"torch": "2.15.0"},
        splits=[SplitCount("train", 1, 1, 1, 1)],
        scans=results.scans[:1],
        ledger={"localizer": 1},
    )
    (folder / "run.html").write_text(render_run(run))
    for name, html in (("study", study), ("tall", tall), ("wide", wide)):
        (folder / f"{name}.html").write_text(html)
    return folder


@pytest.fixture(scope="module")
def chromium():
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")
        driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_window_size(1440, 1000)
    driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium, pages):
    """The browser with the study open; at the end no script complained and nothing was asked for outside."""
    chromium.get_log("browser")
    chromium.get_log("performance")
    chromium.get((pages / "study.html").as_uri())
    yield chromium
    assert chromium.get_log("browser") == []
    events = [json.loads(line["message"])["message"] for line in chromium.get_log("performance")]
    asked = [
        one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.startswith("file:") for url in asked)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def element(browser, selector):
    return browser.find_element("css selector", selector)


def text(browser, selector):
    return element(browser, selector).text.replace("\N{NO-BREAK SPACE}", " ")


def press(browser, *keys):
    for key in keys:
        element(browser, "body").send_keys(key)


def set_slider(browser, selector, value):
    browser.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}));",
        element(browser, selector),
        value,
    )


def stage(browser):
    """Pixels of the picture as they are on the screen."""
    browser.execute_async_script(
        "const done = arguments[0];"
        "const pictures = [...document.querySelectorAll('#viewer .stage img[src]')];"
        "Promise.all(pictures.map((one) => one.decode())).then(() => requestAnimationFrame("
        "() => requestAnimationFrame(done)));"
    )
    return element(browser, "#viewer .stage").screenshot_as_png


def test_a_study_opens_at_its_most_probable_slice(browser):
    assert text(browser, ".result") == "▲ Probability above 50 %"
    assert text(browser, "#probability") == "87 %"
    assert element(browser, "#viewer").is_displayed()
    assert text(browser, "#now") == "Slice 13 of 20"
    assert element(browser, "#picture").get_property("naturalWidth") == 96
    assert element(browser, "#probability").value_of_css_property("font-size") == "64px"


def test_keys_move_the_slice_and_what_is_said_of_it(browser):
    before = element(browser, "#picture").get_attribute("src"), stage(browser)
    press(browser, Keys.ARROW_RIGHT)
    assert text(browser, "#now") == "Slice 14 of 20"
    assert element(browser, "#slider").get_property("value") == "14"
    assert element(browser, "#picture").get_attribute("src") != before[0]
    assert stage(browser) != before[1]
    assert "Slice 14 of 20, brain window" in element(browser, "#picture").get_attribute("alt")
    press(browser, Keys.ARROW_LEFT)
    assert (element(browser, "#picture").get_attribute("src"), stage(browser)) == before
    press(browser, Keys.ARROW_UP, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert text(browser, "#now") == "Slice 12 of 20"
    assert text(browser, "#slice-probability") == "4 %"
    assert text(browser, "#slice-interval") == "< 1 % to 9 %"
    assert text(browser, "#slice-without") == "87 %"
    assert text(browser, "#slice-place") == "55.0 mm"
    assert text(browser, "#slice-label") == "no bleed"


def test_the_sides_of_the_patient_are_those_of_the_slice(browser):
    def marks():
        found = browser.find_elements("css selector", "#viewer .edge")
        return {one.get_attribute("data-edge"): one.text for one in found}

    assert marks() == {"left": "R", "right": "L", "top": "A", "bottom": "P"}
    set_slider(browser, "#slider", 16)
    assert marks() == {"left": "L", "right": "R", "top": "A", "bottom": "P"}
    set_slider(browser, "#slider", N)  # of which nothing is known
    assert set(marks().values()) == {""}
    set_slider(browser, "#slider", 16)
    picture = element(browser, "#picture").rect
    for name, across, down in (("left", 0, 0.5), ("right", 1, 0.5), ("top", 0.5, 0), ("bottom", 0.5, 1)):
        mark = element(browser, f"#viewer .edge[data-edge={name}]").rect
        for start, size, at in (("x", "width", across), ("y", "height", down)):
            middle = (mark[start] + mark[size] / 2 - picture[start]) / picture[size]
            assert abs(middle - at) < 0.05
            assert 0 < middle < 1


def test_slider_keys_and_strip_move_the_slice(browser, pages):
    def now():
        return int(re.search(r"Slice (\d+) of", text(browser, "#now"))[1])

    before = element(browser, "#picture").get_attribute("src")
    for value, key, expected in (
        (N, Keys.ARROW_RIGHT, N),
        (1, Keys.ARROW_LEFT, 1),
        (3, Keys.PAGE_UP, 16),  # the middle of the run 13 to 18
        (16, Keys.PAGE_UP, 16),
    ):
        set_slider(browser, "#slider", value)
        assert now() == value
        press(browser, key)
        assert now() == expected
    assert element(browser, "#picture").get_attribute("src") != before
    element(browser, "#slider").send_keys(Keys.ARROW_RIGHT)  # once, not by the slider and the page both
    assert now() == 17
    element(browser, ".hit[data-slice='6']").click()
    assert now() == 7
    column = element(browser, ".hit[data-slice='6']")
    assert element(browser, "#cursor").get_attribute("x") == column.get_attribute("x")
    browser.get((pages / "tall.html").as_uri())
    press(browser, Keys.PAGE_DOWN)
    assert now() == 11
    press(browser, Keys.PAGE_UP)
    assert now() == 13


def test_the_window_changes_the_picture(browser):
    pictures = {stage(browser)}
    for name in ("blood", "soft tissue"):
        element(browser, f"[data-window='{name}']").click()
        assert element(browser, f"[data-window='{name}']").get_attribute("aria-pressed") == "true"
        assert f"{name} window" in element(browser, "#picture").get_attribute("alt")
        pictures.add(stage(browser))
    assert len(pictures) == 3
    press(browser, "w")  # back to the first
    assert element(browser, "[data-window=brain]").get_attribute("aria-pressed") == "true"
    assert stage(browser) in pictures
    press(browser, Keys.ARROW_RIGHT)  # a button that was clicked keeps the arrows for the slices
    assert text(browser, "#now") == "Slice 14 of 20"


def test_the_overlay_changes_the_pixels_and_its_opacity_counts(browser):
    plain = stage(browser)
    shown = {}
    for name in ("evidence", "uncertainty"):
        press(browser, "o")
        assert element(browser, f"[data-overlay={name}]").get_attribute("aria-pressed") == "true"
        shown[name] = stage(browser)
    assert len({plain, *shown.values()}) == 3
    set_slider(browser, "#opacity", 100)
    assert text(browser, "#percent") == "100 %"
    assert stage(browser) not in {plain, *shown.values()}
    set_slider(browser, "#opacity", 0)
    assert stage(browser) == plain
    element(browser, "[data-overlay='']").click()
    set_slider(browser, "#opacity", 60)
    assert stage(browser) == plain
    assert not element(browser, "#over").is_displayed()
    element(browser, "[data-overlay=evidence]").click()
    element(browser, "#opacity").send_keys(Keys.ARROW_RIGHT)  # its arrows are its own
    assert text(browser, "#percent") == "65 %"
    assert text(browser, "#now") == "Slice 13 of 20"
    set_slider(browser, "#slider", 2)
    assert text(browser, "#about-map") == "This slice has no heatmap."
    assert not element(browser, "#over").is_displayed()
    set_slider(browser, "#slider", 14)
    assert text(browser, "#about-map") == ""
    assert element(browser, "#over").is_displayed()


PHONE = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture
def phone(browser):
    """The browser as wide as a phone."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    browser.refresh()
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("name", ["study.html", "tall.html", "index.html", "run.html"])
def test_no_page_is_wider_than_a_phone(phone, pages, name):
    phone.get((pages / name).as_uri())
    phone.execute_script("for (const one of document.querySelectorAll('details')) one.open = true;")
    assert phone.execute_script("return document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_phone_shows_the_worklist_row_by_row(phone, pages):
    phone.get((pages / "index.html").as_uri())
    rows = phone.find_elements("css selector", "#rows tr")
    assert len(rows) == 12
    assert all(row.size["height"] < PHONE["height"] / 2 for row in rows)
    script = "return getComputedStyle(document.querySelector('#rows [data-name]'), '::before').content"
    assert "main slices (probability without them): " in phone.execute_script(script)  # there is no head row
    element(phone, "[data-decision=look]").click()
    assert {row.get_attribute("data-decision") for row in rows if row.is_displayed()} == {"look"}


@pytest.mark.parametrize("slice_", [12, 0, 19])
def test_on_a_phone_the_strip_shows_the_slice_of_the_viewer(phone, slice_):
    """All of the strip is too wide, and what matters may lie beyond the edge."""
    if slice_ != 12:
        set_slider(phone, "#slider", slice_ + 1)
    script = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    place = phone.execute_script(script, f".hit[data-slice='{slice_}']")
    assert 0 <= place["left"] < place["right"] <= PHONE["width"]


@pytest.mark.parametrize("name", ["tall.html", "wide.html"])
def test_hostile_texts_show_as_text(browser, pages, name):
    browser.get((pages / name).as_uri())
    shown = LONG.replace("\u202e", "\N{REPLACEMENT CHARACTER}").replace("\u2067", "\N{REPLACEMENT CHARACTER}")
    assert text(browser, ".texts dd") == shown
    assert text(browser, "h1 bdi") == shown
    assert browser.execute_script("return document.querySelectorAll('script').length") == 2
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    press(browser, Keys.ARROW_RIGHT)
    assert text(browser, "#now") == "Slice 14 of 20"


def test_the_policy_lets_no_other_script_run(chromium, pages):
    chromium.get((pages / "study.html").as_uri())
    chromium.execute_script(
        "const one = document.createElement('script'); one.textContent = 'document.title = \"run\"';"
        "document.body.append(one); document.body.insertAdjacentHTML('beforeend', "
        '\'<img src="https://evil.example/x.png" onerror="document.title = 1">\');'
    )
    assert chromium.title.startswith("Intracranial hemorrhage: Probability above 50 %")
    refused = [line["message"] for line in chromium.get_log("browser")]
    assert len(refused) == 3
    assert all("Content Security Policy" in line for line in refused)


@pytest.mark.parametrize("paper", [(8.27, 11.69), (8.5, 11.0)], ids=["A4", "letter"])
@pytest.mark.parametrize("name", ["study.html", "tall.html", "wide.html"])
def test_a_study_prints_on_one_page(browser, pages, name, paper):
    browser.get((pages / name).as_uri())
    size = {"paperWidth": paper[0], "paperHeight": paper[1]}
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", size)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) == 1
    assert len(re.findall(rb"/Subtype\s*/Image\b", pdf)) >= 4


def test_without_a_script_the_result_stands(browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.refresh()
        assert text(browser, "#probability") == "87 %"
        assert "needs JavaScript" in text(browser, "body")
        assert not element(browser, "#viewer").is_displayed()
        assert element(browser, ".strip").is_displayed()
        assert all(one.is_displayed() for one in browser.find_elements("css selector", ".top img"))
        assert not element(browser, "#cursor").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("scheme", ["dark", "light", "paper"])
@pytest.mark.parametrize("name", ["study.html", "tall.html", "index.html", "run.html"])
def test_every_text_has_contrast(browser, pages, name, scheme):
    browser.get((pages / name).as_uri())
    if scheme == "light":
        element(browser, "#light").click()
    if scheme == "paper":
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        found = browser.execute_script(CONTRASTS)
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 100) == (scheme == "dark")
    assert len(found) > 20
    assert [one for one in found if one[0] < 4.5] == []


def test_the_cohort_filters_its_rows(browser, pages):
    browser.get((pages / "index.html").as_uri())

    def rows():
        return [row for row in browser.find_elements("css selector", "#rows tr") if row.is_displayed()]

    results = cohort(12)
    assert len(rows()) == 12
    for decision in ("positive", "look", "negative"):
        element(browser, f"button[data-decision={decision}]").click()
        expected = [one.scan for one in worklist(results) if one.decision == decision]
        assert [row.find_element("css selector", "bdi").text for row in rows()] == expected
        assert text(browser, "#shown") == str(len(expected))
    element(browser, "button[data-decision='']").click()
    wanted = results.scans[4].scan
    element(browser, "#search").send_keys(wanted[-5:])
    assert [row.find_element("css selector", "bdi").text for row in rows()] == [wanted]
    element(browser, "#search").clear()
    element(browser, "#search").send_keys("REPEATED refused")
    assert len(rows()) == sum(len(one.ledger) > 1 for one in results.scans) > 0
    element(browser, "#search").send_keys(" nowhere")
    assert rows() == []


def test_the_links_of_the_cohort_open_the_study(browser, pages):
    browser.get((pages / "index.html").as_uri())
    element(browser, "#rows a").click()
    assert browser.title.startswith("Intracranial hemorrhage: Probability above 50 %")
    assert browser.current_url.endswith(study_file_name(worklist(cohort(12))[0].scan))
