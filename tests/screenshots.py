"""Pictures of the study page and the cohort page for the documentation.

    python -m tests.screenshots

In: phantom scans with made-up results (`tests.results`); no picture of a patient. Out: `docs/study.png` and
`docs/cohort.png`, taken with Debian's chromium.
"""

import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from ich_mil.dicom.geometry.planes import Edges
from ich_mil.files import write_text
from ich_mil.report.cohort_page import render_cohort
from ich_mil.report.page import study_file_name
from ich_mil.report.study_page import render_study
from tests.results import DECIDED_BY, MODEL, cohort, maps_of, phantom, scan_of

DOCS = Path(__file__).parents[1] / "docs"
SHOTS = {"study": "document.querySelector('[data-overlay=evidence]').click()", "cohort": ""}
"""What is clicked before each picture is taken."""


def main() -> None:
    """Write both pages into a temporary folder and take their pictures."""
    hu, masks = phantom(512)
    results = cohort(18)
    links = {scan.scan: study_file_name(scan.scan) for scan in results.scans}
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    DOCS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = render_study(
            scan_of(masks),
            MODEL,
            DECIDED_BY,
            hu,
            maps_of(masks),
            edges=[Edges("R", "L", "A", "P")] * len(hu),
            spacing_mm=(0.45, 0.45),
        )
        write_text(folder / "study.html", study)
        write_text(folder / "cohort.html", render_cohort(results, links, title="Studies of a night"))
        browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            browser.set_window_size(1440, 1043)
            for shot, click in SHOTS.items():
                browser.get((folder / f"{shot}.html").as_uri())
                browser.execute_script(click)
                browser.save_screenshot(str(DOCS / f"{shot}.png"))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
