"""A reader under watch: what becomes of files that may hang, crash or eat up the machine.

In: `Mutant`s and the name of a function that reads a file. Out: a `Result` for each. The reader runs in a
process of its own. Two outcomes are good: `read` (int16 (H, W) within the CT scale, for every slice) and
`refused` (a `DicomError` with a ledger code and one line that names the file). All others are failures:
another exception, values out of range, a dead process (decoders are written in C), too much time or memory
(`Limits`).

Memory is the growth of the process's peak resident size (VmHWM of proc(5), reset before each file). Besides,
RLIMIT_AS stops it at `Limits.addressed` above its start; a refusal that stems from that is a failure too.
"""

import faulthandler
import importlib
import os
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from tests.dicom.mutations import Corpus, Mutant
from tests.forkserver import forkserver

MAX_FRAMES = 50
READER = "tests.dicom.watch:read_all"

Reader = Callable[[Path], Iterator[tuple[int, int, np.ndarray] | DicomError]]


def read_all(path: Path) -> Iterator[tuple[int, int, np.ndarray] | DicomError]:
    """Every slice of a file: rows and columns of its header with its HU, or its refusal."""
    from ich_mil.dicom.files.header import read_headers
    from ich_mil.dicom.pixels.read import read_slice

    for header in read_headers(path)[:MAX_FRAMES]:
        try:
            hu, _ = read_slice(header)
        except DicomError as error:
            yield error
        else:
            yield header.rows, header.columns, hu


# In the watched process


@dataclass(frozen=True)
class Limits:
    """What one file may cost.

    Args:
        seconds: of processor time, so that a busy machine does not count.
        patience: seconds by the clock, for a reader that waits.
        memory: bytes, growth of the peak resident size.
        addressed: bytes, growth of the address space.
    """

    seconds: float = 5.0
    patience: float = 60.0
    memory: int = 1 << 30
    addressed: int = 3 << 30


@dataclass(frozen=True)
class Result:
    """What became of one file.

    Args:
        outcome: `read` or `refused`; else a failure: `exception`, `values`, `refusal` (one that says too
            little), `memory`, `slow`, `dead`.
        detail: of a refusal its code; of a failure what is needed to find it.
        seconds: of processor time.
        peak: bytes, growth of the peak resident size.
        warnings: how many Python warnings came out.
        printed: bytes that decoders wrote to stdout and stderr.
    """

    outcome: str
    detail: str
    seconds: float = 0.0
    peak: int = 0
    warnings: int = 0
    printed: int = 0

    @property
    def failed(self) -> bool:
        return self.outcome not in ("read", "refused")


def examine(reader: Reader, path: Path, limits: Limits) -> Result:
    """Read one file in this process and judge what comes of it."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, printed, started = _status("VmRSS"), os.fstat(2).st_size, time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome, detail = _judge(reader, path)
    seconds, peak = time.process_time() - started, max(_status("VmHWM") - before, 0)
    if outcome in ("read", "refused") and peak > limits.memory:
        outcome, detail = "memory", f"peak {peak >> 20} MiB, though {outcome}: {detail}"
    elif outcome in ("read", "refused") and seconds > limits.seconds:
        outcome, detail = "slow", f"{seconds:.1f} s, though {outcome}: {detail}"
    return Result(outcome, detail, seconds, peak, len(caught), os.fstat(2).st_size - printed)


def _judge(reader: Reader, path: Path) -> tuple[str, str]:
    """Outcome and detail; the worst of a file's slices counts, and a refusal of all of them is a refusal."""
    judged = []
    try:
        for one in reader(path):
            judged.append(_judge_refusal(one, path) if isinstance(one, DicomError) else _judge_values(*one))
    except DicomError as error:
        judged.append(_judge_refusal(error, path))
    except BaseException as error:
        name = "memory" if isinstance(error, MemoryError) else "exception"
        return name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]} at {_place(error)}"
    if not judged:
        return "values", "no slice and no refusal"
    return next((one for one in judged if one[0] not in ("read", "refused")), judged[0])


def _judge_values(rows: int, columns: int, hu: np.ndarray) -> tuple[str, str]:
    if not isinstance(hu, np.ndarray):
        return "values", f"a {type(hu)}"
    if hu.dtype != np.int16 or hu.shape != (rows, columns) or hu.size == 0:
        return "values", f"{hu.dtype} {hu.shape}, header {rows} x {columns}"
    if hu.min() < -1024 or hu.max() > 3095:
        return "values", f"HU from {hu.min()} to {hu.max()}"
    return "read", ""


def _judge_refusal(error: DicomError, path: Path) -> tuple[str, str]:
    message, cause = str(error), error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, MemoryError):
            return "memory", f"more was asked for than may be addressed, then refused: {message[:200]}"
        cause = cause.__cause__ or cause.__context__
    if error.code not in set(Code):
        return "refusal", f"code {error.code!r} is none of the ledger's"
    if not message.startswith(f"{path}: ") or len(message.splitlines()) != 1 or len(message) > 1000:
        return "refusal", f"message is not one line that names the file: {message[:200]!r}"
    return "refused", str(error.code)


def _place(error: BaseException) -> str:
    """File and line where an error came up and of the two calls that led there, innermost first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(frames[-3:]))


def _status(name: str) -> int:
    """A size of this process, bytes (proc(5), status)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {name}")


def _serve(connection: Connection, reader: str, limits: Limits, printed: Path) -> None:
    """The watched process: reads the files whose paths come in, sends a `Result` for each."""
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(2)  # a crash says where in Python the decoder was called
    module, _, name = reader.partition(":")
    function = getattr(importlib.import_module(module), name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _status("VmSize") + limits.addressed
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.send("ready")
    while (path := connection.recv()) is not None:
        connection.send(examine(function, path, limits))


# The watch


class Watched:
    """One process that reads, killed when it takes too long and started anew when it dies."""

    def __init__(self, reader: str, limits: Limits, folder: Path) -> None:
        self.reader, self.limits, self.folder = reader, limits, folder
        self.context = forkserver()
        self.mutant: Mutant | None = None
        self._start()

    def _start(self) -> None:
        self.connection, theirs = self.context.Pipe()
        self.printed = Path(tempfile.mkstemp(dir=self.folder, suffix=".txt")[1])
        self.process = self.context.Process(
            target=_serve, args=(theirs, self.reader, self.limits, self.printed), daemon=True
        )
        self.process.start()
        theirs.close()
        if not self.connection.poll(60) or self.connection.recv() != "ready":
            raise RuntimeError(f"the reading process does not start: {self.printed.read_text()[-500:]}")
        self.read: list[int] = []  # numbers read by this process, for a crash that comes late

    def give(self, mutant: Mutant) -> None:
        """Have the process read a file."""
        self.mutant, self.path = mutant, self.folder / f"{mutant.number}.dcm"
        self.path.write_bytes(mutant.content)
        self.given, self.used = time.perf_counter(), self._processor_seconds()
        self.read.append(mutant.number)
        with suppress(BrokenPipeError):  # it has died since: `take` will see
            self.connection.send(self.path)

    def take(self) -> Result | None:
        """The result of the file given, or None while there is none and time is left."""
        result = None
        seconds = self._processor_seconds() - self.used
        try:
            if self.connection.poll(0):
                result = self.connection.recv()
            elif seconds > self.limits.seconds:
                result = Result("slow", f"killed after {seconds:.1f} s of processor time", seconds)
                self.restart()
            elif time.perf_counter() - self.given > self.limits.patience:
                result = Result("slow", f"killed after {self.limits.patience:g} s by the clock", seconds)
                self.restart()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            result = Result("dead", f"{name}: {_last_words(self.printed.read_text(errors='replace'))}")
            self.restart()
        if result is not None:
            self.path.unlink()
            self.mutant = None
        return result

    def _processor_seconds(self) -> float:
        """What the process has used so far (proc(5), stat: utime and stime); 0 where it is gone."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def restart(self) -> None:
        """A fresh process instead of this one."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.printed.unlink(missing_ok=True)


def _last_words(text: str) -> str:
    """What a dead process printed last, and the innermost lines of Python it was in."""
    before, _, after = text.partition("Fatal Python error")
    said = [line for line in before.splitlines() if line.strip()][-3:]
    places = [line.strip() for line in after.splitlines() if line.startswith("  File")][:4]
    return " | ".join(said + places)[:700]


def run(
    corpus: Corpus | Sequence[Mutant],
    numbers: Sequence[int],
    *,
    jobs: int = 1,
    reader: str = READER,
    limits: Limits = Limits(),
    tell: Callable[[Mutant, Result], None] = lambda mutant, result: None,
) -> dict[int, Result]:
    """Read files of a corpus under watch.

    A file that kills its process is read again by a fresh one: a crash that does not come again was prepared
    by an earlier file, and the result names those it may be.

    Args:
        corpus: the files by number.
        numbers: which of them.
        jobs: processes that read.
        reader: `module:function` of what reads, as `read_all` does.
        limits: of one file.
        tell: called with each result as it comes.

    Returns:
        The result of each number.
    """
    results: dict[int, Result] = {}
    todo = iter(numbers)
    with tempfile.TemporaryDirectory() as name:
        watched = [Watched(reader, limits, Path(name)) for _ in range(min(jobs, max(len(numbers), 1)))]
        try:
            for one in watched:
                if (number := next(todo, None)) is not None:
                    one.give(corpus[number])
            while busy := [one for one in watched if one.mutant is not None]:
                wait([one.connection for one in busy], timeout=0.2)
                for one in busy:
                    mutant, before = one.mutant, one.read[-30:-1]
                    assert mutant is not None
                    if (result := one.take()) is None:
                        continue
                    if result.outcome == "dead":
                        result = _again(one, mutant, result, before)
                    results[mutant.number] = result
                    tell(mutant, result)
                    if (number := next(todo, None)) is not None:
                        one.give(corpus[number])
        finally:
            for one in watched:
                one.stop()
    return dict(sorted(results.items()))


def _again(one: Watched, mutant: Mutant, first: Result, before: list[int]) -> Result:
    """Read a file that killed its process once more, by the fresh one alone."""
    one.give(mutant)
    while (second := one.take()) is None:
        wait([one.connection], timeout=0.2)
    if second.outcome == "dead":
        return second
    return Result("dead", f"only after other files ({before}): {first.detail}")
