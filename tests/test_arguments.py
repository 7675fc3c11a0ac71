"""The command line: suggestions for what is mistyped, help with examples and defaults, completion."""

import argparse
import shlex
import subprocess
import sys

import pytest

from ich_mil import __version__, cli
from ich_mil.arguments import EXAMPLES, WITH_SETTINGS, make_parser
from ich_mil.cli import main
from tests.runs_for_tests import refused


def ended(capsys, *words):
    """What a command that ends in argparse prints."""
    with pytest.raises(SystemExit):
        main(words)
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("predct x", "predict"),
        ("predict x --modle y", "--model"),
        ("predict x --modle=y", "--model"),
        ("validate x --layot cq500 --model m", "--layout"),  # one that is required
        ("triage x --method conformel", "conformal"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_meant(capsys, line, meant):
    assert f"did you mean {meant!r}?" in ended(capsys, *line.split())


def test_a_word_like_no_other_gets_no_suggestion(capsys):
    told = ended(capsys, "predict", "x", "--zzz")
    assert "--zzz" in told
    assert "did you mean" not in told


def test_the_version(capsys):
    assert ended(capsys, "--version") == f"ich-mil {__version__}\n"


def subparsers():
    parser = make_parser()
    return next(one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))


def test_help_tells_defaults_and_examples():
    parsers = subparsers()
    assert {*parsers} | {""} == {*EXAMPLES}
    for name, parser in parsers.items():
        for action in parser._actions:
            if action.option_strings and action.default not in (None, False, [], argparse.SUPPRESS):
                assert "default" in action.help, (name, action.dest)


@pytest.mark.parametrize(
    "line",
    [line for name, text in EXAMPLES.items() if name not in WITH_SETTINGS for line in text.splitlines()],
)
def test_examples_are_accepted(line):
    if "COMMAND" not in line:
        make_parser().parse_args(shlex.split(line)[1:])


def test_run_is_the_whole_pipeline_by_file_or_name(monkeypatch, tmp_path, capsys):
    done = []
    monkeypatch.setattr(cli, "_train", lambda words, command, program: done.append((words, command, program)))
    assert main(["run", "demo", "--seed", "3"]) == 0
    assert done == [(["--config", "demo", "--seed", "3"], "run", "ich-mil run CONFIG")]
    assert "one of ctich, demo" in refused(capsys, "run")


def test_completion_knows_commands_options_and_settings(tmp_path):
    pytest.importorskip("shtab")
    script = subprocess.run(
        [sys.executable, "-m", "ich_mil", "--print-completion", "bash"], capture_output=True, check=True
    )
    (tmp_path / "complete.sh").write_bytes(script.stdout)
    (tmp_path / "try.sh").write_text(
        f"source {tmp_path}/complete.sh\n"
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()\n'
        "  $(complete -p ich-mil | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${COMPREPLY[@]}; }\n"
        "try ich-mil pre\ntry ich-mil predict --mo\ntry ich-mil run --head.be\n"
    )
    told = subprocess.run(["bash", tmp_path / "try.sh"], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["prepare predict", "--model", "--head.beta"]


def test_completion_without_shtab_is_refused_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "ich-mil[completion]" in refused(capsys, "--print-completion", "bash")
