"""Fingers on the study page, in a real browser that pretends to be a phone."""

import re

import pytest

from tests.chromium import element, text
from tests.pages.test_viewer import PANE, placed

pytestmark = pytest.mark.browser


@pytest.fixture
def fingers(phone):
    """The phone with a touch screen."""
    phone.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
    phone.refresh()
    yield phone
    phone.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def touch(browser, *moves):
    """Put fingers on the picture at fractions of it (across, down), move them, and lift them."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element(browser, PANE))
    box = browser.execute_script(
        "return arguments[0].getBoundingClientRect().toJSON()", element(browser, PANE)
    )
    for number, points in enumerate(moves):
        at = [
            {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"], "id": i}
            for i, (x, y) in enumerate(points)
        ]
        kind = "touchMove" if number else "touchStart"
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def now(browser):
    return int(re.search(r"Slice (\d+) of", text(browser, "#now"))[1])


def test_a_swipe_moves_the_slice(fingers):
    before = now(fingers)
    level = text(fingers, "#level-width")
    touch(fingers, [(0.5, 0.5)], [(0.56, 0.5)], [(0.64, 0.5)])
    later = now(fingers)
    assert later > before
    touch(fingers, [(0.64, 0.5)], [(0.56, 0.5)], [(0.5, 0.5)])
    assert now(fingers) == before
    assert text(fingers, "#level-width") == level


def test_two_fingers_zoom_and_move(fingers):
    slice_ = now(fingers)
    zoom, *_ = placed(fingers)
    touch(fingers, [(0.45, 0.5), (0.55, 0.5)], [(0.4, 0.5), (0.6, 0.5)], [(0.35, 0.5), (0.65, 0.5)])
    closer, _, top, *_ = placed(fingers)
    assert closer == pytest.approx(3 * zoom, rel=0.02)
    before = placed(fingers)[1]
    touch(fingers, [(0.4, 0.5), (0.6, 0.5)], [(0.45, 0.5), (0.65, 0.5)], [(0.5, 0.5), (0.7, 0.5)])
    assert placed(fingers)[0] == pytest.approx(closer, rel=0.02)
    assert placed(fingers)[1] == pytest.approx(before - 0.1 / closer, abs=0.005)
    assert placed(fingers)[2] == pytest.approx(top, abs=0.005)
    assert now(fingers) == slice_


def test_targets_are_large_and_keys_are_not_explained(fingers):
    sizes = fingers.execute_script(
        "return [...document.querySelectorAll('button')].map((one) => one.getBoundingClientRect().toJSON());"
    )
    assert min(min(one["width"], one["height"]) for one in sizes) >= 44
    assert not element(fingers, ".by-mouse").is_displayed()
    assert element(fingers, ".by-finger").is_displayed()


def test_the_picture_begins_above_the_fold(fingers):
    top = fingers.execute_script("return arguments[0].getBoundingClientRect().top", element(fingers, PANE))
    assert top < 600


def test_the_choice_of_light_stays(browser, pages):
    element(browser, "#light").click()
    browser.get((pages / "study.html").as_uri())
    assert element(browser, "#light").is_selected()
    element(browser, "#light").click()
    browser.refresh()
    assert not element(browser, "#light").is_selected()
