"""Helpers for tests of the pages in Debian's chromium, driven by selenium."""

import io

import numpy as np
from PIL import Image

LONG = "<script>alert(1)</script></script>\" onload='alert(2)' \u202e\u2067 {{ 7 * 7 }} " + "x" * 300
PHONE = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}


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


def grey(png):
    """Grey values (rows, columns) of a picture of the screen."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("L")).astype(int)
