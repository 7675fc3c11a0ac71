"""Viewer of the study page in a real browser."""

import re

import pytest

from ich_mil.model.predictions import worklist
from ich_mil.pages.page import study_file_name
from tests.chromium import element, grey, press, set_slider, stage, text
from tests.results import cohort

pytestmark = pytest.mark.browser
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys
N = 20
PANE = "#viewer .view[data-pane=first]"
SLICE, OVER = f"{PANE} .slice", f"{PANE} .over"


def now(browser):
    return int(re.search(r"Slice (\d+) of", text(browser, "#now"))[1])


def level_width(browser):
    return tuple(map(int, text(browser, "#level-width").split(" / ")))


def mouse(browser, kind, at, **options):
    """Send a mouse event at a point of the first pane, given as fractions (across, down)."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'nearest'})", element(browser, PANE))
    box = browser.execute_script(
        "return arguments[0].getBoundingClientRect().toJSON()", element(browser, PANE)
    )
    x, y = box["x"] + at[0] * box["width"], box["y"] + at[1] * box["height"]
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **options})


def drag(browser, across, down, *, shift=False, late_shift=False):
    """Drag from the middle of the first pane by fractions of it; `late_shift` presses Shift halfway."""
    held = {"button": "left", "buttons": 1, "modifiers": 8 * shift}
    mouse(browser, "mousePressed", (0.5, 0.5), clickCount=1, **held)
    for part in (0.5, 1):
        mouse(browser, "mouseMoved", (0.5 + part * across, 0.5 + part * down), **held)
        held["modifiers"] = 8 * (shift or late_shift)
    mouse(browser, "mouseReleased", (0.5 + across, 0.5 + down), clickCount=1, **held)


def wheel(browser, pixels, *, ctrl=False):
    mouse(browser, "mouseWheel", (0.5, 0.5), deltaX=0, deltaY=pixels, modifiers=2 * ctrl)


def placed(browser, pane="first"):
    """Zoom, and edges (left, top, right, bottom) of the part of the picture that a pane shows, in 0 to 1."""
    view, sheet = browser.execute_script(
        "const found = [...document.querySelectorAll(arguments[0])];"
        "return found.map((one) => one.getBoundingClientRect().toJSON());",
        f".view[data-pane={pane}], .view[data-pane={pane}] .sheet",
    )
    zoom = sheet["width"] / view["width"]
    left, top = (view["x"] - sheet["x"]) / sheet["width"], (view["y"] - sheet["y"]) / sheet["height"]
    return zoom, left, top, left + 1 / zoom, top + 1 / zoom


def test_a_study_opens_at_its_most_probable_slice(browser):
    assert text(browser, ".result") == "▲ Probability above 50 %"
    assert text(browser, "#probability") == "87 %"
    assert element(browser, "#viewer").is_displayed()
    assert text(browser, "#now") == "Slice 13 of 20"
    assert element(browser, SLICE).get_property("naturalWidth") == 96
    assert element(browser, "#probability").value_of_css_property("font-size") == "64px"


def test_keys_move_the_slice(browser):
    before = element(browser, SLICE).get_attribute("src"), stage(browser)
    press(browser, Keys.ARROW_RIGHT)
    assert text(browser, "#now") == "Slice 14 of 20"
    assert element(browser, "#slider").get_property("value") == "14"
    assert element(browser, SLICE).get_attribute("src") != before[0]
    assert stage(browser) != before[1]
    assert "Slice 14 of 20, brain window" in element(browser, SLICE).get_attribute("alt")
    press(browser, Keys.ARROW_LEFT)
    assert (element(browser, SLICE).get_attribute("src"), stage(browser)) == before
    press(browser, Keys.ARROW_UP, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert text(browser, "#now") == "Slice 12 of 20"
    assert text(browser, "#slice-probability") == "4 %"
    assert text(browser, "#slice-interval") == "< 1 % to 9 %"
    assert text(browser, "#slice-without") == "87 %"
    assert text(browser, "#slice-place") == "55.0 mm"
    assert text(browser, "#slice-label") == "no bleed"


def test_sides_of_the_patient(browser):
    def marks():
        found = browser.find_elements("css selector", f"{PANE} .edge")
        return {one.get_attribute("data-edge"): one.text for one in found}

    assert marks() == {"left": "R", "right": "L", "top": "A", "bottom": "P"}
    set_slider(browser, "#slider", 16)
    assert marks() == {"left": "L", "right": "R", "top": "A", "bottom": "P"}
    set_slider(browser, "#slider", N)  # of which nothing is known
    assert set(marks().values()) == {""}
    set_slider(browser, "#slider", 16)
    picture = element(browser, PANE).rect
    for name, across, down in (("left", 0, 0.5), ("right", 1, 0.5), ("top", 0.5, 0), ("bottom", 0.5, 1)):
        mark = element(browser, f"{PANE} .edge[data-edge={name}]").rect
        for start, size, at in (("x", "width", across), ("y", "height", down)):
            middle = (mark[start] + mark[size] / 2 - picture[start]) / picture[size]
            assert abs(middle - at) < 0.05
            assert 0 < middle < 1


def test_slider_keys_and_strip_move_the_slice(browser):
    before = element(browser, SLICE).get_attribute("src")
    for key in (Keys.END, Keys.PAGE_UP, Keys.HOME, Keys.PAGE_DOWN):  # of the page
        press(browser, key)
        assert now(browser) == 13
    scrolled = "return new Promise((done) => setTimeout(() => done(scrollY), 500))"
    assert browser.execute_script(scrolled) > 0
    mouse(browser, "mouseMoved", (0.5, 0.5))
    for value, key, expected in (
        (N, Keys.ARROW_RIGHT, N),
        (1, Keys.ARROW_LEFT, 1),
        (3, Keys.PAGE_UP, 13),  # the first slice with a heatmap
        (13, Keys.PAGE_UP, 14),
        (17, Keys.PAGE_UP, 17),
        (N, Keys.PAGE_DOWN, 17),
        (13, Keys.PAGE_DOWN, 13),
        (5, Keys.HOME, 1),
        (5, Keys.END, N),
    ):
        set_slider(browser, "#slider", value)
        assert now(browser) == value
        press(browser, key)
        assert now(browser) == expected
    assert element(browser, SLICE).get_attribute("src") != before
    set_slider(browser, "#slider", 3)
    element(browser, "#slider").send_keys(Keys.ARROW_RIGHT)  # once, not by the slider and the page both
    assert now(browser) == 4
    element(browser, ".hit[data-slice='6']").click()
    assert now(browser) == 7
    column = element(browser, ".hit[data-slice='6']")
    assert element(browser, "#cursor").get_attribute("x") == column.get_attribute("x")


def test_the_window_changes_the_picture(browser):
    pictures = {stage(browser)}
    for name in ("blood", "soft tissue", "bone"):
        element(browser, f"[data-window='{name}']").click()
        assert element(browser, f"[data-window='{name}']").get_attribute("aria-pressed") == "true"
        assert f"{name} window" in element(browser, SLICE).get_attribute("alt")
        pictures.add(stage(browser))
    assert len(pictures) == 4
    press(browser, "w")  # back to the first
    assert element(browser, "[data-window=brain]").get_attribute("aria-pressed") == "true"
    assert stage(browser) in pictures
    press(browser, Keys.ARROW_RIGHT)  # a button that was clicked keeps the arrows for the slices
    assert text(browser, "#now") == "Slice 14 of 20"


def test_overlay_and_opacity_change_the_pixels(browser):
    plain = stage(browser)
    shown = {}
    for name in ("location", "uncertainty"):
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
    assert not element(browser, OVER).is_displayed()
    element(browser, "[data-overlay=location]").click()
    element(browser, "#opacity").send_keys(Keys.ARROW_RIGHT)  # its arrows are its own
    assert text(browser, "#percent") == "65 %"
    assert text(browser, "#now") == "Slice 13 of 20"
    set_slider(browser, "#slider", 2)
    assert text(browser, "#about-map") == "This slice has no heatmap."
    assert not element(browser, OVER).is_displayed()
    set_slider(browser, "#slider", 14)
    assert text(browser, "#about-map") == text(browser, f"{PANE} .about") == ""
    assert element(browser, OVER).is_displayed()
    browser.execute_script("scan.clear.location = [13]; show()")
    assert text(browser, f"{PANE} .about") == "location: no place reaches 10 %"


def test_the_wheel_moves_the_slice(browser):
    mouse(browser, "mouseMoved", (0.5, 0.5))
    scrolled = browser.execute_script("return scrollY")
    for pixels, expected in (
        (-120, 14),  # up, a notch
        (120, 13),
        (120, 12),
        (-25, 12),  # a touchpad: 40 pixels for a slice
        (-25, 13),
        (-25, 13),
        (100, 12),  # the other way: the rest does not count
    ):
        wheel(browser, pixels)
        assert now(browser) == expected
    assert browser.execute_script("return scrollY") == scrolled


def test_a_drag_sets_level_and_width(browser):
    set_slider(browser, "#slider", 1)  # brain of 35 HU in the middle

    def middle():
        shown = grey(stage(browser))
        rows, columns = (slice(int(0.45 * size), int(0.55 * size)) for size in shown.shape)
        return shown[rows, columns].mean()

    def expected():
        level, width = level_width(browser)
        return 255 * min(1, max(0, (35 - level) / width + 0.5))

    assert level_width(browser) == (40, 80)
    assert middle() == pytest.approx(expected(), abs=3)
    drag(browser, 0, -0.25)
    assert level_width(browser) == (60, 80)
    assert middle() == pytest.approx(expected(), abs=4)
    assert "60 / 80 window" in element(browser, SLICE).get_attribute("alt")
    assert {
        one.get_attribute("aria-pressed") for one in browser.find_elements("css selector", "[data-window]")
    } == {"false"}
    drag(browser, 0.25, 0)
    level, width = level_width(browser)
    assert level == 60
    assert 105 < width < 120  # 4 ** 0.25 of 80
    assert middle() == pytest.approx(expected(), abs=4)
    drag(browser, 0.4, 0.4)
    assert level_width(browser)[0] < 60
    assert middle() == pytest.approx(expected(), abs=4)
    element(browser, "[data-window=brain]").click()
    assert level_width(browser) == (40, 80)
    assert element(browser, SLICE).value_of_css_property("filter") == "none"


def test_zoom_and_pan_stay_within_the_picture(browser):
    element(browser, "[data-fit=whole]").click()
    assert placed(browser) == pytest.approx((1, 0, 0, 1, 1))
    wheel(browser, -120, ctrl=True)
    assert placed(browser)[0] == pytest.approx(1.1)
    for _ in range(3):
        press(browser, "+")
    zoom, left, top, right, bottom = placed(browser)
    assert zoom == pytest.approx(1.1 * 1.25**3)
    drag(browser, 0.1, -0.1, shift=True)
    assert placed(browser)[1:] == pytest.approx(
        (left - 0.1 / zoom, top + 0.1 / zoom, right - 0.1 / zoom, bottom + 0.1 / zoom), abs=0.003
    )
    assert level_width(browser) == (40, 80)
    for across, down, edges in ((0.45, 0.45, (0, 0)), (-0.45, -0.45, (1, 1))):
        for _ in range(4):
            drag(browser, across, down, shift=True)
        assert [placed(browser)[1 + 2 * edge + axis] for axis, edge in enumerate(edges)] == pytest.approx(
            edges, abs=1e-3
        )
    press(browser, *["+"] * 12)
    assert placed(browser)[0] == pytest.approx(8)
    press(browser, *["-"] * 12)
    assert placed(browser) == pytest.approx((1, 0, 0, 1, 1), abs=1e-3)
    assert now(browser) == 13


@pytest.mark.parametrize("how", ["opened", "button", "double click"])
def test_the_head_fills_the_view(browser, how):
    box = browser.execute_script("return JSON.parse(document.querySelector('#scan').textContent).box")
    if how != "opened":
        element(browser, "[data-fit=whole]").click()
    if how == "button":
        element(browser, "[data-fit=head]").click()
    if how == "double click":
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                mouse(browser, kind, (0.5, 0.5), button="left", buttons=1, clickCount=count)
    zoom, left, top, right, bottom = placed(browser)
    assert zoom > 1.05
    assert zoom == pytest.approx(1 / max(box[2] - box[0], box[3] - box[1]), abs=1e-3)
    assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx(
        ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2), abs=1e-3
    )


def test_both_heatmaps_are_shown_side_by_side(browser):
    second = element(browser, "#viewer .view[data-pane=second]")
    assert not second.is_displayed()
    press(browser, "o", "o", "o")
    panes = browser.find_elements("css selector", "#viewer .view")
    assert [one.is_displayed() for one in panes] == [True, True]
    assert panes[0].rect["x"] + panes[0].rect["width"] <= panes[1].rect["x"]
    assert panes[0].size == panes[1].size
    overlays = browser.execute_script("return scan.overlays")
    assert [one.find_element("css selector", ".over").get_attribute("src") for one in panes] == [
        overlays[name]["12"] for name in ("location", "uncertainty")
    ]
    assert [one.find_element("css selector", ".about").text for one in panes] == ["location", "uncertainty"]
    assert len({one.find_element("css selector", ".slice").get_attribute("src") for one in panes}) == 1
    press(browser, "+")
    drag(browser, 0.2, 0.1, shift=True)
    assert placed(browser, "second") == pytest.approx(placed(browser), abs=1e-3)
    press(browser, "o")
    assert not second.is_displayed()


def test_the_overviews_mark_the_slice(browser):
    for value, across in ((1, 1 - 0.5 / N), (N, 0.5 / N), (6, 1 - 5.5 / N)):
        set_slider(browser, "#slider", value)
        for name in ("coronal", "sagittal"):
            plane, line = (element(browser, f"[data-plane={name}]{part}").rect for part in (" img", " .here"))
            assert (line["y"] - plane["y"]) / plane["height"] == pytest.approx(across, abs=0.02)
            assert line["width"] == pytest.approx(plane["width"], abs=1)


def test_keys_open_the_neighbouring_studies_and_the_worklist(browser, pages):
    order = [study_file_name(one.scan) for one in worklist(cohort(12))]
    browser.get((pages / order[1]).as_uri())

    def after(key):
        press(browser, key)
        return browser.current_url.rsplit("/", 1)[1]

    assert after("n") == order[2]
    assert after("p") == order[1]
    assert after("p") == order[0]
    assert after("p") == order[0]  # there is none before
    assert after("l") == "index.html"
