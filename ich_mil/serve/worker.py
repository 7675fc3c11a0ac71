"""Worker thread: runs the judging process on complete studies of the spool, one at a time.

In: a spool and a judging process. Out: results in the outbox, or a failure record in `failed/`.
"""

import threading
import time
from collections import Counter

from ich_mil.errors import IchMilError
from ich_mil.serve.judging import JudgeProcess, StoppedError, StudyFailedError
from ich_mil.serve.log import say
from ich_mil.serve.metrics import Metrics
from ich_mil.serve.spool import Job, Spool

LOOK_SECONDS = 0.1
"""Polling interval for a complete study."""
PAUSE_SECONDS = 5.0
"""Pause after a fault not caused by a study: the model cannot be loaded, or the disk fails or is full."""


class Worker(threading.Thread):
    """Thread with one judging process.

    Attributes:
        problem: why the worker cannot work at the moment, '' if it can.
    """

    def __init__(
        self,
        spool: Spool,
        process: JudgeProcess,
        metrics: Metrics,
        *,
        attempts: int,
        lost: Counter[str],
        stop: threading.Event,
    ) -> None:
        """Set up the thread; it is not started.

        Args:
            spool: source of studies.
            process: judging process.
            metrics: counters of the node.
            attempts: maximum number of attempts for a study whose process is lost.
            lost: number of lost processes by job name, shared by all workers. A study is processed by one
                worker at a time.
            stop: set when the node stops; the study in progress returns to the queue.
        """
        super().__init__(name="judge", daemon=True)
        self._spool, self._process, self._metrics = spool, process, metrics
        self._attempts, self._lost, self._stop_asked = attempts, lost, stop
        self.problem = ""

    def run(self) -> None:
        """Process studies until the node stops."""
        while not self._stop_asked.wait(LOOK_SECONDS):
            try:
                job = self._spool.take()
            except OSError as error:
                self._pause(error, "a study cannot be taken from the queue")
                continue
            if job is None:
                continue
            try:
                self._judge(job)
                self.problem = ""
            except StoppedError:
                self._spool.back(job)
            except (IchMilError, OSError) as error:  # not caused by the study: model or disk
                self._spool.back(job)
                self._pause(error, f"{job.key}: back in the queue")
        self._process.end()

    def _pause(self, error: Exception, what: str) -> None:
        self.problem = str(error)
        say(f"{what}: {error}")
        self._stop_asked.wait(PAUSE_SECONDS)

    def _judge(self, job: Job) -> None:
        out = self._spool.work(job)
        started = time.monotonic()
        try:
            files = self._process.judge(job.objects, out)
            if not files:
                raise StudyFailedError("the judge made no result")
            if absent := [path.name for path in files if not path.is_file()]:
                raise StudyFailedError(f"the judge has not made {absent[0]}, which it names")
            seconds = time.monotonic() - started
            self._spool.judged(job, files)
        except (StoppedError, IchMilError, OSError):
            raise
        except StudyFailedError as error:
            self._fail(job, str(error))
        except Exception as error:  # the process was lost, or its results are invalid
            self._lost[job.name] += 1
            self._metrics.add("studies_tried_again_total")
            if self._lost[job.name] < self._attempts:
                say(f"{job.key}: {type(error).__name__}, it is tried again")
                self._spool.back(job)
            else:
                self._fail(job, f"{error}; tried {self._attempts} times")
        else:
            self._lost.pop(job.name, None)
            self._metrics.add("studies_judged_total")
            self._metrics.add("judge_seconds_total", seconds)
            say(f"{job.key}: judged in {seconds:.1f} s, {len(files)} files to send")

    def _fail(self, job: Job, reason: str) -> None:
        self._lost.pop(job.name, None)
        self._spool.fail(job, reason)
        self._metrics.add("studies_failed_total")
        say(f"{job.key}: failed, see failed/{job.name}.json in the spool")
