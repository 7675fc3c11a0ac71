"""The pages in a real browser: texts, links, filters, paper, phone, contrast and content security policy."""

import base64
import re

import pytest

from ich_mil.model.predictions import worklist
from tests.chromium import LONG, PHONE, element, press, text
from tests.results import cohort

pytestmark = pytest.mark.browser
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys

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


@pytest.mark.parametrize("name", ["study.html", "tall.html", "index.html", "run.html"])
def test_no_page_is_wider_than_a_phone(phone, pages, name):
    phone.get((pages / name).as_uri())
    phone.execute_script("for (const one of document.querySelectorAll('details')) one.open = true;")
    assert phone.execute_script("return document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("name", ["tall.html", "wide.html"])
def test_hostile_texts_show_as_text(browser, pages, name):
    browser.get((pages / name).as_uri())
    shown = LONG.replace("\u202e", "\N{REPLACEMENT CHARACTER}").replace("\u2067", "\N{REPLACEMENT CHARACTER}")
    patient = shown.replace("onload=", "onload / ")  # = separates the scripts of a name
    assert text(browser, ".texts dd") == patient
    assert text(browser, "h1 bdi") == patient
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


def test_the_worklist_filters_its_rows(browser, pages):
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
    element(browser, "#search").send_keys(str(last := worklist(results)[0].runs[0].last + 1))
    assert rows()
    assert all(re.search(rf"\b{last}\b", row.text) for row in rows())  # no digits of a UID
    element(browser, "#search").clear()
    element(browser, "#search").send_keys("REPEATED refused")
    assert len(rows()) == sum(len(one.ledger) > 1 for one in results.scans) > 0
    element(browser, "#search").send_keys(" nowhere")
    assert rows() == []
