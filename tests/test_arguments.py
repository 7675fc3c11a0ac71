"""The command line: suggestions for what is mistyped, help with examples, completion, numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ich_mil import __version__
from ich_mil.arguments import app, default_out, workers
from ich_mil.cli import main
from ich_mil.convergence import r_hat
from ich_mil.errors import ConfigError
from ich_mil.sets.labels import read_excel
from tests.runs_for_tests import refused

COMMANDS = [one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("predct x", "'predict'"),
        ("predict . --modle y", "--model"),
        ("validate . --layot cq500 --model m", "--layout"),
        ("validate . --layout cq50 --model m", "'cq500'"),
        ("run demo --head.betta 1", "'head.beta'"),
        ("run dmeo", "'demo'"),
        ("drift . --model x --rate 2", "--rate"),
        ("triage . --sensitivity nan", "nan"),
        ("predict . --jobs two", "--jobs"),
        ("predict /absent", "'/absent' does not exist"),
        ("validate . --model m", "--layout"),
        ("validate /absent --layout features --model headct-base", "/absent: no such file"),
        ("validate . --out /o --layout features --model headct-base --column bag", "OURS=THEIRS"),
        ("validate . --out /o --layout features --model headct-base --column bagname=x", "'bag_name'"),
        ("run", "one of ctich, demo"),
    ],
)
def test_mistyped_words_are_one_line_with_the_remedy(capsys, line, named):
    assert named in refused(capsys, *line.split())


@pytest.mark.parametrize(
    ("line", "extra"),
    [("predict . --dicom", "dicom"), ("serve --folder . --out o", "serve")],
)
def test_a_command_names_the_extra_it_needs(capsys, monkeypatch, line, extra):
    monkeypatch.setattr("ich_mil.errors.find_spec", lambda name: None)
    assert f"pip install 'ich-mil[{extra}]'" in refused(capsys, *line.split())


@pytest.mark.parametrize(
    ("root", "out"),
    [
        ("export.zip", "predictions/export"),
        ("scan.nii.gz", "predictions/scan"),
        ("IM1.DCM", "predictions/IM1"),
        ("1.2.840", "predictions/1.2.840"),
        ("site/CT_1", "predictions/CT_1"),
        (".", "{above}/predictions/work"),
        ("..", "{above}/../predictions/{name}"),
    ],
)
def test_default_folder_of_results(tmp_path, monkeypatch, root, out):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    found = default_out("predictions", Path(root)).resolve()
    assert found == Path(out.format(above=tmp_path, name=tmp_path.name)).resolve()


def test_functions_name_the_extra_they_need(monkeypatch):
    monkeypatch.setattr("ich_mil.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"sampling: arviz_stats is not installed; .*\[sampling\]"):
        r_hat(torch.zeros(2, 4, 1))
    with pytest.raises(ConfigError, match=r"labels\.xlsx: openpyxl is not installed; .*\[formats\]"):
        read_excel(Path("labels.xlsx"))


def test_no_command_is_one_line(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err == "error: Missing command (ich-mil --help)\n"


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ich-mil {__version__}\n"


def test_threads_are_set_before_torch_is_imported():
    """Wrong paths end the command before it imports torch, which reads the environment."""
    code = "from ich_mil.cli import main; import os; main(['--threads', '1', 'predict', '/absent'])"
    code += "; import torch; print(torch.get_num_threads(), os.environ['OMP_WAIT_POLICY'])"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "1 PASSIVE\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples(capsys, command):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: ich-mil {command} ")
    assert f"  ich-mil {command}" in shown.split("examples:")[1]
    if command in ("run", "train", "grid"):
        assert "--head.beta" in shown


def complete(*words):
    """What the shell is offered for the last word."""
    environment = os.environ | {
        "_ICH_MIL_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "from ich_mil.cli import main; import sys; sys.exit(main([]))"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout.split()


def test_completion_knows_commands_options_and_settings():
    assert {"predict", "prepare"} == {*complete("ich-mil", "pre")}
    assert complete("ich-mil", "predict", "--mo") == ["--model"]
    assert complete("ich-mil", "run", "--head.be") == ["--head.beta"]


def test_help_imports_nothing_slow():
    """Typer takes a twentieth of a second, pandas ten times as long."""
    code = f"""
import sys
from ich_mil.cli import main
for command in {COMMANDS}:
    assert main([command, "--help"]) == 0
print(sorted({{"torch", "pandas", "numpy", "lightning", "pydicom"}} & sys.modules.keys()))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_no_more_workers_start_than_there_are_cores_for_this_process():
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert (workers(0), workers(3)) == (1, 3)
    finally:
        os.sched_setaffinity(0, cores)
