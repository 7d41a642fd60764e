"""What a probe remembers of the reads of all splits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_log import MemoryLog
from query import new_policy

from sluice.source.model.splits import SplitId
from sluice.source.probing import probe as probe_module
from sluice.source.probing.probe import Probe, ProbeSettings
from sluice.source.probing.read_pace import ReadPace


def test_splits_are_forgotten_by_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread of the planner that meets a new split forgets what need not be kept, and others may too."""
    monkeypatch.setattr(probe_module, "_KEPT_PACES", 1)
    log = MemoryLog()
    probe = Probe(log, new_policy(log), ProbeSettings(pause=log.sleep, clock=log.monotonic))
    for shard in ("0", "1"):
        probe.pace(SplitId("s", shard))

    def by_another_thread(is_forgettable: Callable[[ReadPace, float], bool]) -> Callable[..., bool]:
        def look(pace: ReadPace, now: float) -> bool:
            probe._paces.clear()
            return is_forgettable(pace, now)

        return look

    monkeypatch.setattr(ReadPace, "is_forgettable", by_another_thread(ReadPace.is_forgettable))
    probe.pace(SplitId("s", "2"))
    assert list(probe._paces) == [SplitId("s", "2")]
