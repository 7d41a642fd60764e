"""Starts the agent on the driver host, and restarts it if it dies or does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.kinesis.planner.agent_process import AgentProcess
from sluice.kinesis.shared.link import GIVEN_UP_AFTER, SILENT_AFTER, Link
from sluice.kinesis.shared.protocol import ToAgent, encode
from sluice.retry import Backoff

__all__ = ["AgentSupervisor", "SupervisedAgent"]

_log = logging.getLogger(__name__)

_RESTARTS: Final = Backoff(max_retries=0, base=2.0, max=60.0, exponent=2.0)
"""Seconds between the starts of two agents, by the number of agents in a row that ended before they listened.
Attempts have no limit.
"""
_START_LIMIT: Final = 120
"""How many questions, one a second, an agent may leave unanswered before it listens: on a busy host, its
start is slow.
"""
_END_PATIENCE: Final = 5.0
"""Seconds in which an agent has to end by itself once its link has closed."""


@dataclass(eq=False)
class SupervisedAgent:
    """A started agent and its link. Only `AgentSupervisor` changes the attributes.

    Attributes:
        has_listened: it has reported where it listens. why_not: its report why it can't listen; empty without
            one. silent_since: since when it is silent (monotonic seconds); None while it answers.
        is_given_up: it has not answered for too long.
    """

    process: AgentProcess
    link: Link
    has_listened: bool = False
    why_not: str = ""
    silent_since: float | None = None
    is_given_up: bool = False

    def end(self) -> int:
        """Blocks until the agent has ended, and kills it if necessary. Returns its exit code."""
        return self.process.end(0.0 if self.is_given_up else _END_PATIENCE)


class AgentSupervisor:
    """At most one agent at a time.

    An agent is *starting* until it reports where it listens, then *listening*. If it has sent nothing for 5
    s, it is *silent*: it may be stopped, or hang, and its earlier reports no longer count. If it leaves 30
    questions in a row unanswered, it is *given up*: its link is closed, and it is killed.

    Not thread-safe, except `tell_stop`: the caller holds a lock.

    Args:
        name: names the query's streams, for the log.
        launch: starts an agent. Raises OSError.
        clock: monotonic seconds.
    """

    def __init__(self, name: str, launch: Callable[[], AgentProcess], clock: Callable[[], float]) -> None:
        self._name = name
        self._launch = launch
        self._clock = clock
        self._agent: SupervisedAgent | None = None
        self._started_at = 0.0
        self._next_start = 0.0
        self._failed_starts = 0
        self._known_problem = ""

    @property
    def is_running(self) -> bool:
        return self._agent is not None

    @property
    def recoveries(self) -> int:
        """How often the running agent answered again after a silence."""
        return 0 if self._agent is None else self._agent.link.recoveries

    @property
    def is_silent(self) -> bool:
        """Whether the agent listens, but has sent nothing for 5 s."""
        agent = self._agent
        return agent is not None and agent.has_listened and agent.link.silence >= SILENT_AFTER

    def start(self) -> SupervisedAgent | None:
        """Starts an agent. Returns None if one runs, if it is too early, or if the start fails."""
        now = self._clock()
        if self._agent is not None or now < self._next_start:
            return None
        self._started_at = now
        self._next_start = now + _RESTARTS.ceiling(self._failed_starts)
        try:
            process = self._launch()
        except OSError as error:
            self._record_failed_start(f"can't be started: {error}")
            return None
        if not self._failed_starts:
            _log.info("%s: started the agent (process %d)", self._name, process.pid)
        self._agent = SupervisedAgent(process, Link(process.channel, self._clock))
        return self._agent

    def mark_listening(self) -> None:
        """The agent listens: if it ends, the next one follows soon."""
        agent = self._agent
        if agent is None or agent.has_listened:
            return
        agent.has_listened = True
        if self._failed_starts:
            _log.info(
                "%s: the agent (process %d) listens, after %d that did not",
                self._name,
                agent.process.pid,
                self._failed_starts,
            )
        self._failed_starts, self._known_problem = 0, ""
        self._next_start = self._started_at + _RESTARTS.ceiling(0)

    def mark_failed(self, reason: str) -> None:
        """The agent can't start, and is about to end."""
        if self._agent is not None:
            self._agent.why_not = reason

    def check(self) -> None:
        """Logs that the agent has fallen silent or answers again; gives it up after too long a silence."""
        agent = self._agent
        if agent is None or agent.is_given_up:
            return
        pid, silence = agent.process.pid, agent.link.silence
        if self.is_silent and agent.silent_since is None:
            agent.silent_since = self._clock() - silence
            _log.warning(
                "%s: the agent (process %d) has said nothing for %.0f s; polling until it speaks "
                "again, or is killed after %d s",
                self._name,
                pid,
                silence,
                GIVEN_UP_AFTER,
            )
        elif agent.silent_since is not None and not self.is_silent:
            _log.info(
                "%s: the agent (process %d) speaks again after %.0f s; what it pushes is read again",
                self._name,
                pid,
                self._clock() - agent.silent_since,
            )
            agent.silent_since = None
        if agent.link.unanswered >= (GIVEN_UP_AFTER if agent.has_listened else _START_LIMIT):
            agent.is_given_up = True
            _log.warning(
                "%s: killing the agent (process %d): it has not answered for %.0f s",
                self._name,
                pid,
                silence,
            )
            agent.link.close()  # the receiving thread then calls `forget`

    def send(self, message: ToAgent) -> None:
        """Sends a message, if an agent runs. The next agent gets all messages anew."""
        if self._agent is not None:
            self._agent.link.send(encode(message))

    def forget(self, agent: SupervisedAgent) -> bool:
        """Handles the closed link of `agent`. Returns False if `close` was called before."""
        if agent is not self._agent:
            return False
        self._agent = None
        return True

    def record_end(self, agent: SupervisedAgent, code: int) -> None:
        """Logs that `agent`, which is forgotten, has ended with this exit code."""
        if not agent.has_listened:
            ended = f"has ended with exit code {code} before it listened"
            self._record_failed_start(f"can't start: {agent.why_not}" if agent.why_not else ended)
            return
        _log.warning(
            "%s: the agent has ended with exit code %s; polling until a trigger starts another one, "
            "at the earliest %g s after this one was started",
            self._name,
            code,
            _RESTARTS.base,
        )

    def tell_stop(self) -> bool:
        """See `AgentProcess.tell_stop`."""
        agent = self._agent
        return agent is not None and agent.process.tell_stop()

    def close(self) -> None:
        """Closes the link, which ends the agent."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.link.close()
            agent.process.close()

    def _record_failed_start(self, problem: str) -> None:
        """Logs a problem once, however often it occurs: attempts continue for as long as the query runs."""
        self._failed_starts += 1
        if problem == self._known_problem:
            return
        self._known_problem = problem
        _log.warning(
            "%s: the agent %s; polling, next attempt in %.0f s, later ones every %.0f s at most",
            self._name,
            problem,
            max(0.0, self._next_start - self._clock()),
            _RESTARTS.max,
        )
