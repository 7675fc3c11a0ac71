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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from tests.dicom.mutations import Corpus, Mutant
from tests.together import forkserver

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
    """What one file may cost."""

    seconds: float = 5.0  # of processor time, so that a busy machine does not count
    patience: float = 60.0  # seconds by the clock, for a reader that waits
    memory: int = 1 << 30  # bytes, growth of the peak resident size
    addressed: int = 3 << 30  # bytes, growth of the address space


@dataclass(frozen=True)
class Result:
    """What became of one file.

    Args:
        outcome: `read` or `refused`; else a failure: `exception`, `values`, `refusal` (one that says too
            little), `memory`, `slow`, `dead`.
        detail: of a refusal its code; of a failure what is needed to find it.
        seconds: of processor time.
        peak: bytes, growth of the peak resident size.
    """

    outcome: str
    detail: str
    seconds: float = 0.0
    peak: int = 0

    @property
    def failed(self) -> bool:
        return self.outcome not in ("read", "refused")


def examine(reader: Reader, path: Path, limits: Limits) -> Result:
    """Read one file in this process and judge what comes of it."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, started = _status("VmRSS"), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome, detail = _judge(reader, path)
    seconds, peak = time.process_time() - started, max(_status("VmHWM") - before, 0)
    if outcome in ("read", "refused") and peak > limits.memory:
        outcome, detail = "memory", f"peak {peak >> 20} MiB, though {outcome}: {detail}"
    elif outcome in ("read", "refused") and seconds > limits.seconds:
        outcome, detail = "slow", f"{seconds:.1f} s, though {outcome}: {detail}"
    return Result(outcome, detail, seconds, peak)


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
    """A process that reads, killed if it takes too long and started anew if it dies."""

    def __init__(self, reader: str, limits: Limits, folder: Path) -> None:
        self.reader, self.limits, self.folder = reader, limits, folder
        self.start()

    def start(self) -> None:
        context = forkserver()
        self.connection, theirs = context.Pipe()
        self.printed = Path(tempfile.mkstemp(dir=self.folder, suffix=".txt")[1])
        arguments = (theirs, self.reader, self.limits, self.printed)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        if not self.connection.poll(60) or self.connection.recv() != "ready":
            raise RuntimeError(f"the reading process does not start: {self.printed.read_text()[-500:]}")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def read(self, mutant: Mutant) -> Result:
        """What becomes of a file."""
        path = self.folder / f"{mutant.number}.dcm"
        path.write_bytes(mutant.content)
        started, used = time.perf_counter(), self._processor_seconds()
        try:
            self.connection.send(path)
            while not self.connection.poll(0.2):
                seconds, waited = self._processor_seconds() - used, time.perf_counter() - started
                if seconds > self.limits.seconds or waited > self.limits.patience:
                    self.stop()
                    self.start()
                    killed = f"killed after {seconds:.1f} s of processor time, {waited:.0f} s by the clock"
                    return Result("slow", killed, seconds)
            return self.connection.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self.process.join()
            code = self.process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            words = _last_words(self.printed.read_text(errors="replace"))
            self.start()
            return Result("dead", f"{name}: {words}")
        finally:
            path.unlink()

    def _processor_seconds(self) -> float:
        """What the process has used so far (proc(5), stat: utime and stime); 0 where it is gone."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    reader: str = READER,
    limits: Limits = Limits(),
    tell: Callable[[Mutant, Result], None] = lambda mutant, result: None,
) -> dict[int, Result]:
    """Read files of a corpus under watch: the result of each number.

    `reader` is the `module:function` of what reads, as `read_all` does; `tell` gets each result as it comes.
    A crash that an earlier file of the same process prepared is the result of the later file.
    """
    results: dict[int, Result] = {}
    with tempfile.TemporaryDirectory() as name:
        watched = Watched(reader, limits, Path(name))
        try:
            for number in numbers:
                mutant = corpus[number]
                results[number] = watched.read(mutant)
                tell(mutant, results[number])
        finally:
            watched.stop()
    return results
