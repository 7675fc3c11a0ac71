"""Imports run one way: a file imports only from layers above its own, and never in a circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import ich_mil

PACKAGE = Path(ich_mil.__file__).parent
LAYERS = ["errors", "settings", "progress", "files", "ledger", "ranks", "windows", "convergence"]
LAYERS += ["kernels", "dicom", "synthetic", "data", "reports", "encoders", "gp", "multimodal", "multikernel"]
LAYERS += ["training", "evaluate", "config", "runs", "report", "commands", "serve", "reproduce"]
LAYERS += ["cli", "__main__"]


def imports_of(path: Path) -> set[str]:
    """Dotted names below ich_mil that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "ich_mil":
            found |= {alias.name for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ich_mil."):
            found.add(node.module.removeprefix("ich_mil."))
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {module_name(path): imports_of(path) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}


def test_every_layer_is_known_and_used():
    assert {name.split(".")[0] for name in FILES} == set(LAYERS)


def test_no_import_runs_upward():
    upward = [
        f"{name} imports {other}"
        for name, others in FILES.items()
        for other in others
        if LAYERS.index(other.split(".")[0]) > LAYERS.index(name.split(".")[0])
    ]
    assert upward == []


def test_no_circle():
    order = list(TopologicalSorter(FILES).static_order())
    assert (
        order.index("errors")
        < order.index("data.preparation.prepare")
        < order.index("commands.train")
        < order.index("cli")
    )


def test_what_trains_nothing_does_not_wait_for_what_trains():
    """Lightning and torch's compiler take seconds to import."""
    names = ", ".join(f"ich_mil.commands.{name}" for name in ("predict", "validate", "recalibrate", "report"))
    slow = "{'lightning', 'torchmetrics', 'torch._dynamo'}"
    code = f"import sys; import {names}; print(sorted({slow} & sys.modules.keys()))"
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert told.stdout == "[]\n", told.stderr


def test_the_processes_that_prepare_do_without_torch():
    code = "import sys, ich_mil.data.preparation.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
