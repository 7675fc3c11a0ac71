"""Prediction of one study, in a child process with a time limit: a damaged file can crash a decoder."""

import errno
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from ich_mil.errors import ConfigError, DataError, DiskFullError, IchMilError, ModelError, ProcessError


def judge(
    study: Path | None,
    out: Path,
    replaced: Sequence[Path],
    *,
    model: Path,
    triage: Path | None = None,
    contrast_words: Path | None = None,
) -> None:
    """Predict the DICOM files of one study.

    Args:
        study: folder with the files; None only loads the model.
        out: empty folder; gets the page `index.html`, `dicom/` and the predictions.
        replaced: earlier DICOM results, which the structured report names as its predecessors.
        model: folder of the model.
        triage: thresholds of the decision.
        contrast_words: contrast words of the site.

    Raises:
        ConfigError, DataError, ModelError: as `load_model`, `read_study` and `ScanResult.save_dicom`.
    """
    from ich_mil.model.predictions import write_results
    from ich_mil.prediction import load_model
    from ich_mil.sets.preparation.read import read_study
    from ich_mil.study.contrast import read_site_phrases

    read_site_phrases(contrast_words)  # errors in the file are raised before the first study
    loaded = load_model(model, triage=triage)
    if study is not None:
        read = read_study(study, contrast_words=contrast_words)
        result = loaded.predict(replace(read, folder=""))  # pages do not show what senders call a folder
        write_results(result.results, out)
        result.save_page(out / "index.html")
        result.save_dicom(out / "dicom", replaced=replaced)


def run_in_child(work: Callable[[], object], *, seconds: float) -> None:
    """Call the picklable `work` in a process of its own, which is killed after `seconds` or with this one.

    Raises:
        ModelError, DataError: the model cannot be used; the study cannot be judged.
        ProcessError, OSError: the process was lost; the disk is full.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_run, args=(theirs, work), daemon=True)
    child.start()
    theirs.close()  # so that the pipe ends with the child
    kind, reason = "lost", f"the judging process took longer than {seconds:g} s"
    try:
        if ours.poll(seconds):
            kind, reason = ours.recv()
    except EOFError:
        child.join(1)
        reason = f"the judging process ended with exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()
        ours.close()
    if kind == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind:
        raise {"model": ModelError, "study": DataError, "lost": ProcessError}[kind](reason)


def _run(pipe: Connection, work: Callable[[], object]) -> None:
    """Send kind and reason of the error of `work`, '' without an error."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - a device, until the process ends
    kind, reason = "", ""
    try:
        work()
    except (ModelError, ConfigError) as error:
        kind, reason = "model", str(error)
    except Exception as error:
        is_full = isinstance(error, DiskFullError) or getattr(error, "errno", 0) in (
            errno.ENOSPC,
            errno.EDQUOT,
        )
        kind = "full" if is_full else "study" if isinstance(error, IchMilError) else "lost"
        reason = str(error) if isinstance(error, IchMilError) else f"{type(error).__name__}: {error}"
    pipe.send((kind, reason))


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(1)
