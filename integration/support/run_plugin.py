"""What all tests share: how Hypothesis looks for examples, and lines that say how far a run has come.

The conftest.py of `tests` and of `integration` import it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator, Sequence

import pytest
from hypothesis import HealthCheck, settings

from integration.support.durations import seconds_of

__all__ = ["Progress", "pytest_configure"]

# One profile for every run. How fast the machine is, and how busy, decides nothing. Each run looks for new
# examples, but for one that decides what is accepted: it repeats itself, so that a change is not turned down
# for a fault that it has not brought.
settings.register_profile(
    "sluice",
    deadline=None,
    max_examples=int(os.environ.get("SLUICE_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize="CI" in os.environ,
)
settings.load_profile("sluice")

_PAUSE = 5.0  # seconds between two lines, and how long a test takes that has a line of its own
_AT_FIRST = 60.0  # seconds of work for which the table of durations is taken at its word
_LONGEST_NAME = 60
_NAME = "sluice-progress"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(config, "workerinput")
    is_there = config.pluginmanager.has_plugin(_NAME)
    if reporter is not None and not (is_worker or is_there or config.option.verbose):
        processes = config.getoption("numprocesses", None) or 1
        config.pluginmanager.register(Progress(reporter, processes), _NAME)


class Progress:
    """In place of a dot a test: a line every few seconds, with what is done, what is left and what runs.

    The time left is the work that is left, as fast as it went so far. How much work a test is among the
    others, a table says for those that take long.
    """

    def __init__(self, reporter: pytest.TerminalReporter, processes: int) -> None:
        self._reporter = reporter
        self._processes = processes
        reporter.showfspath = False
        self._work: dict[str, float] = {}
        self._done = 0
        self._work_done = 0.0
        self._running: dict[str, None] = {}
        self._began = self._said = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._plan([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if not self._work:
            self._plan(ids)

    def _plan(self, ids: Sequence[str]) -> None:
        tests = Counter(map(_file, ids))
        self._work = {each: seconds_of(_file(each), tests[_file(each)]) / tests[_file(each)] for each in ids}
        self._began = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self,
    ) -> Generator[None, tuple[str, str, object], tuple[str, str, object]]:
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash else ""
            self._reporter.write_line(f"FAILED {report.nodeid}: {reason}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = None
        if self._work.get(nodeid, 0.0) >= _PAUSE or time.monotonic() >= self._said + _PAUSE:
            self._say()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._done += 1
        self._work_done += self._work.get(nodeid, 0.0)

    def _say(self) -> None:
        self._said = time.monotonic()
        took = self._said - self._began
        pace = (took + _AT_FIRST / self._processes) / (self._work_done + _AT_FIRST)
        left = pace * (sum(self._work.values()) - self._work_done)
        running = ", ".join(name.partition("/")[2][:_LONGEST_NAME] for name in self._running)
        self._reporter.write_line(
            f"[{_clock(took)}] {self._done} of {len(self._work)} done, about {_clock(left)} left: {running}"
        )


def _file(test: str) -> str:
    return test.partition("::")[0]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
