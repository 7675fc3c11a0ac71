"""A node with a fake judge as a process of its own: `-m tests.serve.run_node FILE.json SECONDS CALLS`."""

import json
import sys
from pathlib import Path

from ich_mil.serve.node import serve
from ich_mil.serve.settings import ArchiveSettings, ServeSettings
from tests.serve.judges import FakeJudge

if __name__ == "__main__":
    file, seconds, calls = sys.argv[1:]
    values = json.loads(Path(file).read_bytes())
    values |= {"spool": Path(values["spool"]), "archive": ArchiveSettings(**values["archive"])}
    serve(ServeSettings(**values), FakeJudge(seconds=float(seconds), calls=Path(calls)))
