"""Pictures of the pages for the documentation.

    python -m tests.screenshots

In: two studies of CT-ICH (CC BY 4.0) as the bundled model judges them: the sample study, and a bleed that it
misses, from `data/ctich` (`make headct-base`); phantom scans with made-up results for lists and metrics. Out:
`docs/study.png`, `docs/study_missed.png`, `docs/worklist.png` and `docs/metrics.png` (1440 x 900), and
`docs/phone.png` with three pages at 390 px, taken with Debian's chromium.
"""

import io
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pydicom
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import ich_mil
from ich_mil.files import write_text
from ich_mil.pages.page import study_file_name
from ich_mil.pages.run_page import RunPage, SplitCount, render_run
from ich_mil.pages.worklist_page import render_worklist
from tests.results import MODEL, cohort, evaluated_set

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MISSED = "ID_52ed93fc31"
"""Scan of CT-ICH with an epidural hemorrhage in 4 slices."""
LOCATION = "document.querySelector('[data-overlay=location]').click()"
DESK, PHONE = (1440, 900), (390, 844)


def write_studies(folder: Path) -> None:
    """Write the pages of the two real studies."""
    missed = folder / "missed"
    missed.mkdir()
    for file in (ROOT / "data" / "ctich" / "rsna" / "stage_2_train").glob("*.dcm"):
        header = pydicom.dcmread(file, specific_tags=["StudyInstanceUID"], stop_before_pixels=True)
        if header.StudyInstanceUID == MISSED:
            shutil.copy(file, missed)
    model = ich_mil.load_model()
    for name, study in (("study", ROOT / "data" / "sample" / "head_ct"), ("study_missed", missed)):
        model.predict(ich_mil.read_study(study)).save_page(folder / f"{name}.html")


def write_made_up(folder: Path) -> None:
    """Write the pages with made-up results."""
    results = cohort(18)
    labels = np.random.default_rng(0).integers(0, 2, len(results.scans)).tolist()
    results = replace(
        results,
        scans=tuple(replace(one, label=label) for one, label in zip(results.scans, labels, strict=True)),
    )
    links = {scan.scan: study_file_name(scan.scan) for scan in results.scans}
    write_text(folder / "worklist.html", render_worklist(results, links, title="Studies of a night"))
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
        write_studies(folder)
        write_made_up(folder)
        browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            shots = {
                "study": shoot(browser, folder / "study.html", DESK, LOCATION),
                "study_missed": shoot(browser, folder / "study_missed.html", DESK),
                "worklist": shoot(browser, folder / "worklist.html", DESK),
                "metrics": shoot(browser, folder / "metrics.html", DESK),
            }
            names = ("study", "worklist", "metrics")
            phones = [shoot(browser, folder / f"{page}.html", PHONE, "") for page in names]
        finally:
            browser.quit()
    shots["phone"] = Image.fromarray(np.concatenate([np.asarray(one) for one in phones], axis=1))
    for shot, picture in shots.items():
        small = picture.quantize(256)
        small.save(DOCS / f"{shot}.png", optimize=True)


if __name__ == "__main__":
    main()
