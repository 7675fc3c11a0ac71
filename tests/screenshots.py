"""Pictures of the pages for the documentation.

    python -m tests.screenshots

In: phantom scans with made-up results (`tests.results`); no picture of a patient. Out: `docs/study.png`,
`docs/cohort.png` and `docs/metrics.png` (1440 x 900), `docs/study_1920.png`, and `docs/phone.png` with all
three at 390 px, taken with Debian's chromium.
"""

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from ich_mil.files import write_text
from ich_mil.pages.cohort_page import neighbours, render_cohort
from ich_mil.pages.page import study_file_name
from ich_mil.pages.run_page import RunPage, SplitCount, render_run
from ich_mil.pages.study_page import render_study
from ich_mil.study.geometry.planes import Edges
from tests.results import DECIDED_BY, MODEL, cohort, evaluated_set, maps_of, phantom, scan_of

DOCS = Path(__file__).parents[1] / "docs"
LOCATION, BOTH = (f"document.querySelector('[data-overlay={name}]').click()" for name in ("location", "both"))
DESK, WIDE, PHONE = (1440, 900), (1920, 1080), (390, 844)


def write_pages(folder: Path) -> None:
    """Write the three pages."""
    hu, masks = phantom(512)
    results = cohort(18)
    labels = np.random.default_rng(0).integers(0, 2, len(results.scans)).tolist()
    results = replace(
        results,
        scans=tuple(replace(one, label=label) for one, label in zip(results.scans, labels, strict=True)),
    )
    links = {scan.scan: study_file_name(scan.scan) for scan in results.scans}
    study = render_study(
        scan_of(masks),
        MODEL,
        DECIDED_BY,
        hu,
        maps_of(masks),
        edges=[Edges("R", "L", "A", "P")] * len(hu),
        spacing_mm=(0.45, 0.45),
        neighbours=neighbours(results, links)[results.scans[0].scan],
    )
    write_text(folder / "study.html", study)
    write_text(folder / "cohort.html", render_cohort(results, links, title="Studies of a night"))
    measured = replace(
        evaluated_set(np.array([0, 1] * 60)),
        name="external scans, site B",
        scans=[replace(one, scan=f"B-{i:03}") for i, one in enumerate(results.scans)],
    )
    page = RunPage(
        "Validation: site B",
        MODEL,
        splits=[SplitCount("external", 120, 120, 3840, 60)],
        sets=[measured],
        links={one.scan: "study.html" for one in measured.scans},
        curves=pd.DataFrame({"train_loss": [0.9, 0.5, 0.4]}),
    )
    write_text(folder / "metrics.html", render_run(page))


def shoot(browser: webdriver.Chrome, page: Path, size: tuple[int, int], script: str = "") -> Image.Image:
    """Picture of a page in a window of `size`, after a script."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    browser.execute_script(script)
    return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")


def main() -> None:
    """Write the pages into a temporary folder and take their pictures."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pages(folder)
        browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            shots = {
                "study": shoot(browser, folder / "study.html", DESK, LOCATION),
                "study_1920": shoot(browser, folder / "study.html", WIDE, BOTH),
                "cohort": shoot(browser, folder / "cohort.html", DESK),
                "metrics": shoot(browser, folder / "metrics.html", DESK),
            }
            names = ("study", "cohort", "metrics")
            phones = [shoot(browser, folder / f"{page}.html", PHONE, "") for page in names]
        finally:
            browser.quit()
    shots["phone"] = Image.fromarray(np.concatenate([np.asarray(one) for one in phones], axis=1))
    for shot, picture in shots.items():
        small = picture if shot == "study" else picture.quantize(256)  # bands of colours in a heatmap
        small.save(DOCS / f"{shot}.png", optimize=True)


if __name__ == "__main__":
    main()
