"""Imports run one way: a file imports only from layers above its own, and never in a circle."""

import ast
import subprocess
import sys
import textwrap
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ich_mil
from tests.feature_table import write_features

PACKAGE = Path(ich_mil.__file__).parent
LAYERS = ["errors", "progress", "guard", "yaml_files", "settings", "files", "model_files", "ledger", "ranks"]
LAYERS += ["convergence", "kernels", "study", "phantoms", "sets", "gp", "radiology_text", "heads"]
LAYERS += ["multimodal", "families", "multikernel", "network", "evaluate", "config", "model", "pages"]
LAYERS += ["dicom_results", "prediction", "output"]
LAYERS += ["serve", "arguments", "commands", "cli", "__main__"]


def layer(name: str) -> str:
    return name.split(".")[0]


def imports_of(path: Path) -> set[str]:
    """Dotted names below ich_mil that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "ich_mil":
            found |= {alias.name for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ich_mil."):
            module = node.module.removeprefix("ich_mil.")
            within = {f"{module}.{alias.name}" for alias in node.names}
            files = {name for name in within if (PACKAGE / f"{name.replace('.', '/')}.py").is_file()}
            found |= files or {module}
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {module_name(path): imports_of(path) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}


def test_every_layer_is_known_and_used():
    assert set(map(layer, FILES)) == set(LAYERS)


def test_no_import_runs_upward():
    upward = [
        f"{name} imports {other}"
        for name, others in FILES.items()
        for other in others
        if LAYERS.index(layer(other)) > LAYERS.index(layer(name))
    ]
    assert upward == []


def test_gp_is_a_library_of_its_own():
    """It imports no room but `kernels`, and of the files at the root those that know no data."""
    roots = {"errors", "files", "model_files", "convergence"}
    imported = {layer(other) for name, others in FILES.items() if layer(name) == "gp" for other in others}
    assert imported <= {"gp", "kernels", *roots}


@pytest.mark.parametrize(
    ("room", "users"),
    [
        ("multimodal", {"families", "config"}),  # the class of the head; the section of the configuration
        ("multikernel", set()),  # an estimator of its own
        ("radiology_text", {"heads.extras", "output.label_reports"}),
    ],
)
def test_other_papers_are_reached_in_one_place(room, users):
    named = {name for name, others in FILES.items() if room in map(layer, others) and layer(name) != room}
    assert named == users


def test_no_circle():
    order = list(TopologicalSorter(FILES).static_order())
    assert (
        order.index("errors")
        < order.index("sets.preparation.prepare")
        < order.index("model.training.train")
        < order.index("cli")
    )


def python(code, *words):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_trains_nothing_does_not_wait_for_what_trains():
    """Lightning, torch's compiler and highdicom take seconds to import."""
    names = "ich_mil.output.prediction, ich_mil.output.run_report, ich_mil.model.site.recalibrate"
    names += ", ich_mil.model.training.train"  # of heads alone
    slow = {"lightning", "torchmetrics", "torch._dynamo", "highdicom"}
    assert python(f"import sys; import {names}; print(sorted({slow} & sys.modules.keys()))") == "[]\n"


def test_a_prediction_by_a_head_of_slices_does_without_scikit_learn():
    slow = {"sklearn", "scipy.stats"}
    code = f"import sys, ich_mil.output.prediction; print(sorted({slow} & sys.modules.keys()))"
    assert python(code) == "[]\n"


def test_the_processes_that_prepare_do_without_torch():
    assert python("import sys, ich_mil.sets.preparation.prepare; print('torch' in sys.modules)") == "False\n"


def test_a_plain_installation_predicts_and_fits_heads(tmp_path):
    """Without the packages of the extras."""
    write_features(tmp_path / "f.csv", 12, 0)
    program = """
import sys
extras = "arviz_stats h5py highdicom lightning nibabel openpyxl prometheus_client snowballstemmer torchmil"
sys.modules.update(dict.fromkeys(extras.split()))  # as if not installed
from ich_mil.cli import main
for line in sys.argv[1:]:
    assert main(line.split()) == 0, line
assert main(["reports", "f.csv", "--out", "r"]) == 2
"""
    sample = f"predict {PACKAGE.parent / 'data' / 'sample' / 'head_ct'} --out {tmp_path / 'p'} --no-heatmaps"
    heads = f"run --train.layout features --train.root {tmp_path / 'f.csv'} --out {tmp_path / 'm'}"
    words = [sys.executable, "-c", program, sample, heads]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "snowballstemmer is not installed; pip install 'ich-mil[reports]'" in ended.stderr


def test_wrong_paths_and_settings_are_refused_before_torch_is_imported(tmp_path):
    """In one process, as starting Python takes longer than the commands."""
    (tmp_path / "site").mkdir()
    (tmp_path / "bad.yaml").write_text("out: x\ntrain: {layout: rsna, root: r}\nhead: {beta: -1}\n")
    (tmp_path / "absent.yaml").write_text("out: x\ntrain: {layout: rsna, root: /absent}\n")
    (tmp_path / "grid.yaml").write_text(
        "out: x\ntrain: {layout: features, root: /absent}\ngrid: {beta: [1.0]}\nhead: {density: gamma}\n"
    )
    labelled = ["/absent", "--layout", "cq500", "--model", "headct-base"]
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "list.csv").write_text("Acc. No.;ICH\n1;evtl.\n")
    table = ["--model", "headct-base", "--labels", "list.csv", "--id-column", "Acc. No.", "--label-column"]
    commands = [
        ["prepare", "/absent", "--layout", "rsna", "--out", "x"],
        ["labels-template", "/absent"],
        ["train", "--config", "absent.yaml"],
        ["train", "--config", "bad.yaml"],
        ["train", "--config", "nowhere.yaml"],
        ["grid", "--config", "grid.yaml"],
        ["grid", "--config", "bad.yaml"],
        ["serve", "--folder", "/absent", "--out", "x"],
        ["serve", "--folder", "site", "--out", "site/x"],
        ["serve", "--folder", "site", "--out", "x", "--model", "/absent"],
        ["serve", "--orthanc", "ftp://host", "--out", "x"],
        ["serve", "--orthanc", "http://host", "--out", "x", "--login", "/absent"],
        ["predict", "/absent"],
        ["predict", "site", "--out", "site/x"],
        ["predict", "cut.zip"],
        ["predict", "site", "--model", "/absent"],
        ["predict", "site", "--model", "site"],
        ["predict", "site", "--triage", "/absent"],
        ["predict", "site", "--contrast-words", "/absent"],
        ["predict", "site", "--covariates", "/absent"],
        ["predict", "site", "--requests", "site", "--reports", "site"],
        ["validate", *labelled],
        ["validate", "site", "--layout", "folder", *table, "IHC"],
        ["validate", "site", "--layout", "folder", *table, "ICH"],
        ["validate", "site", "--layout", "folder", "--model", "headct-base"],
        ["validate", "site", "--layout", "cq500", *table, "ICH"],
        ["recalibrate", "site", "--layout", "folder", *table, "ICH", "--out", "x"],
        ["recalibrate", *labelled, "--out", "x"],
        ["ensemble", "/absent", "site", "--out", "x"],
        ["triage", "site"],
        ["subtype", "site", "--kinds", "bad.yaml", "--out", "x"],
        ["drift", "/absent", "--model", "headct-base"],
        ["report", "site"],
        ["reports", "/absent", "--out", "x"],
    ]
    code = f"""
        import os, sys
        from ich_mil.cli import main
        os.chdir(sys.argv[1])
        for words in {commands}:
            assert main(words) == 2, words
            assert "torch" not in sys.modules, words
        print(os.listdir("site"))
    """
    assert python(textwrap.dedent(code), tmp_path) == "[]\n"
