"""Prediction of one study, in a child process with a time limit: a damaged file can crash a decoder."""

import errno
import multiprocessing
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from ich_mil.errors import ConfigError, DataError, DiskFullError, IchMilError, ModelError, ProcessError
from ich_mil.files import copy_files


def judge(study: Path | None, out: Path, replaced: Sequence[Path], **model: Path | None) -> None:
    """Predict the DICOM files of one study.

    Args:
        study: folder with the files; None only loads the model.
        out: empty folder; gets the page, `dicom/`, the predictions and, after an error too, the ledger.
        replaced: earlier DICOM results, which the structured report names as its predecessors.
        model: arguments of `Predictor`, whose errors are raised too.
    """
    from ich_mil.output.prediction import Predictor
    from ich_mil.output.study_pages import Shown

    predictor = Predictor(**model)  # type: ignore[arg-type]
    if study is not None:
        try:
            predictor(study, out, shown=Shown(dicom=True, replaced=tuple(replaced)))
        finally:
            copy_files(out / "prepared", out, "ledger.csv")
            shutil.rmtree(out / "prepared", ignore_errors=True)


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
