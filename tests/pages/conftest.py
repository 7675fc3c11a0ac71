"""Pages of phantom scans, and Debian's chromium, headless and without a network, to open them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ich_mil.ledger import BY_INTERVAL, Code, LedgerEntry
from ich_mil.model.predictions import Provenance, Run, worklist
from ich_mil.pages.page import study_file_name
from ich_mil.pages.run_page import RunPage, SplitCount, render_run
from ich_mil.pages.study_page import render_study
from ich_mil.pages.worklist_page import neighbours, render_worklist
from ich_mil.study.geometry.planes import Edges
from tests.chromium import LONG, PHONE
from tests.results import MODEL, cohort, evaluated_set, maps_of, scan_of

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
N, MAPPED = 20, 5
EDGES = [*[Edges("R", "L", "A", "P")] * 15, *[Edges("L", "R", "A", "P")] * 4, None]


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


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """A folder with a study, a hostile study, and a worklist that links to the study."""
    folder = tmp_path_factory.mktemp("pages")
    hu, masks = head(N)
    scan = scan_of(masks)
    maps = maps_of(masks, most=MAPPED, cells=8)
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
    (folder / "index.html").write_text(render_worklist(results, links, title="Studies of a night"))
    around = neighbours(results, links)
    for one in worklist(results)[:3]:
        study = render_study(
            scan,
            MODEL,
            BY_INTERVAL,
            hu,
            maps,
            edges=EDGES,
            spacing_mm=(2.0, 2.0),
            neighbours=around[one.scan],
        )
        (folder / links[one.scan]).write_text(study)
    run = RunPage(
        "Run",
        MODEL,
        "seed: 0",
        {"torch": "2.15.0"},
        splits=[SplitCount("train", 1, 1, 1, 1)],
        sets=[evaluated_set(np.array([0, 1] * 15))],
        links={"missed": links[results.scans[0].scan]},
        curves=pd.DataFrame({"train_loss": [0.9, 0.5]}),
        ledger={"localizer": 1},
    )
    (folder / "run.html").write_text(render_run(run))
    for name, html in (("study", study), ("tall", tall), ("wide", wide)):
        (folder / f"{name}.html").write_text(html)
    return folder


@pytest.fixture(scope="session")
def chromium():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM.is_file() and DRIVER.is_file()):
        pytest.skip("Debian's chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
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
    chromium.execute_script("localStorage.clear()")  # the choice of a light page
    assert chromium.get_log("browser") == []
    events = [json.loads(line["message"])["message"] for line in chromium.get_log("performance")]
    asked = [
        one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.startswith("file:") for url in asked)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.fixture
def phone(browser):
    """The browser as wide as a phone."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    browser.refresh()
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
