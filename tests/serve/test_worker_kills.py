"""Two workers on one Orthanc and one OUT, killed at random moments."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydicom import dcmread

from tests.serve.fakes import ct_slice, key, uid, wait_for

ROOT = Path(__file__).parents[2]
KILLS, STUDIES, SLICES = 50, 12, 4


@pytest.mark.slow
def test_50_kills_lose_nothing_and_make_no_other_uid(tmp_path, orthanc):
    moments, out = random.Random(0), tmp_path / "out"
    orthanc.fault = lambda path: time.sleep(0.01) or 0  # so that kills fall between requests too
    command = [sys.executable, "-m", "tests.serve.fakes", orthanc.url, out]

    def start():
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    workers = [start(), start()]
    arrivals = [(number, index) for index in range(SLICES) for number in range(STUDIES)]
    try:
        for kill in range(KILLS):
            if kill < len(arrivals):  # each study grows by a slice after all others have grown
                number, index = arrivals[kill]
                orthanc.store(ct_slice(uid(number), index))
            time.sleep(moments.uniform(0, 1.5))
            killed = moments.randrange(2)
            workers[killed].kill()
            workers[killed].wait()
            workers[killed] = start()

        def is_done():
            states = [json.loads(path.read_text()) for path in out.glob("*/state.json")]
            whole = [state for state in states if len(state["contents"]) == SLICES]
            since = json.loads((out / "orthanc.json").read_text())["since"]
            is_whole = len(whole) == STUDIES and all(state["status"] == "done" for state in whole)
            return is_whole and since >= len(arrivals)

        wait_for(is_done, seconds=120)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for number in range(STUDIES):
        results = {sop for sop, tags in orthanc.tags.items() if tags.StudyInstanceUID == uid(number)}
        slices = [uid(uid(number), index) for index in range(SLICES)]
        allowed = [uid(*sorted(slices[: index + 1])) for index in range(SLICES)]
        assert allowed[-1] in results
        assert results <= {*slices, *allowed}
        home = out / key(uid(number))
        state = json.loads((home / "state.json").read_text())
        judged = {dcmread(home / name / "dicom" / "report-1.dcm").SOPInstanceUID for name in state["sent"]}
        assert judged == results - set(slices)
        assert not (home / ".work").exists()
