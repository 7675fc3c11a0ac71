"""Worker thread: runs the judging process on complete studies of the spool, one at a time."""

import logging
import threading
import time
from collections import Counter

from ich_mil.errors import IchMilError
from ich_mil.serve.judging import JudgeProcess, StoppedError, StudyFailedError
from ich_mil.serve.spool import Spool
from ich_mil.serve.status import Metrics
from ich_mil.serve.studies import Job

_LOG = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
"""Polling interval for a complete study."""
PAUSE_SECONDS = 5.0
"""Pause after a fault not caused by a study: the model cannot be loaded, or the disk fails or is full."""


class Worker(threading.Thread):
    """Thread with one judging process.

    `lost` counts lost processes by job name and is shared by all workers. `stop` is set when the node stops;
    the study in progress then returns to the queue.

    Attributes:
        problem: why the worker cannot work at the moment, '' if it can.
    """

    def __init__(
        self,
        spool: Spool,
        process: JudgeProcess,
        metrics: Metrics,
        *,
        lost: Counter[str],
        stop: threading.Event,
    ) -> None:
        super().__init__(name="judge", daemon=True)
        self._spool, self._process, self._metrics = spool, process, metrics
        self._lost, self._stop_asked = lost, stop
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
        _LOG.error("%s: %s", what, error)
        self._stop_asked.wait(PAUSE_SECONDS)

    def _judge(self, job: Job) -> None:
        out = self._spool.work(job)
        started = time.monotonic()
        attempts = self._spool.settings.attempts
        try:
            files = self._process.judge(job.objects, out, self._spool.outbox.sent(job.key))
            if not files:
                raise StudyFailedError("the judge wrote no result")
            if absent := [path.name for path in files if not path.is_file()]:
                raise StudyFailedError(f"the judge did not write {absent[0]}, which it returned")
            seconds = time.monotonic() - started
            self._spool.judged(job, files)
        except (StoppedError, IchMilError, OSError):
            raise
        except StudyFailedError as error:
            self._fail(job, str(error))
        except Exception as error:  # the process was lost, or its results are invalid
            self._lost[job.name] += 1
            self._metrics.add("studies_tried_again_total")
            if self._lost[job.name] < attempts:
                _LOG.warning("%s: %s, to be tried again", job.key, type(error).__name__)
                self._spool.back(job)
            else:
                self._fail(job, f"{error}; tried {attempts} times")
        else:
            self._lost.pop(job.name, None)
            self._metrics.add("studies_judged_total")
            self._metrics.add("judge_seconds_total", seconds)
            _LOG.info("%s: judged in %.1f s, %d files to send", job.key, seconds, len(files))

    def _fail(self, job: Job, reason: str) -> None:
        self._lost.pop(job.name, None)
        self._spool.fail(job, reason)
        self._metrics.add("studies_failed_total")
        _LOG.warning("%s: failed, see failed/%s.json in the spool", job.key, job.name)
