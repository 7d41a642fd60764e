"""Random steps of a stream and a query: every batch is exact and replayable, parents before children."""

from __future__ import annotations

import functools
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from integration.model import Laws
from memory_subscriptions import ALL_FAULTS, NO_FAULTS, Faults, MemoryAgent
from scenario import LAWS, STEP, VERSIONS, Scenario

from sluice.source.settings import Limits

ALL_LAWS = [
    LAWS,
    replace(LAWS, page_records=3),
    replace(LAWS, listing_gaps=0.2, listing_holes=True),
    replace(LAWS, tip_before_records=0.3),
    replace(LAWS, empty_pages=0, late_tip=0.0),
]


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    laws=st.sampled_from(ALL_LAWS),
    page_limit=st.sampled_from([1, 7, 10_000]),
    fault_rate=st.sampled_from([0.0, 0.0, 0.05]),
    steps=st.lists(STEP, max_size=25),
    versions=VERSIONS,
)
# The probes of a batch with limits had come further than the target of the run that followed.
@example(
    seed=127,
    shards=2,
    laws=replace(LAWS, page_records=3),
    page_limit=1,
    fault_rate=0.05,
    steps=[
        ("put", 1, 0.0),
        ("split", 0),
        ("available", Limits()),
        ("put", 85, 0.0),
        ("put", 300, 0.1),
        ("split", 0),
        ("batch", Limits(), False),
        ("put", 1, 0.0),
        ("put", 181, 0.0),
        ("batch", Limits(records=40), False),
        ("available", Limits()),
    ],
    versions=(1, 2),
)
@example(
    seed=1,
    shards=2,
    laws=replace(LAWS, tip_before_records=0.7),
    page_limit=10_000,
    fault_rate=0.0,
    steps=[
        ("put", 50, 0.1),
        ("batch", Limits(), False),
        ("put", 30, 0.1),
        ("restart",),
        ("batch", Limits(), True),
        ("available", Limits()),
        ("put", 10, 0.1),
    ],
    versions=(1, 2),
)
def test_every_record_arrives_once_in_order_by_polling(  # noqa: PLR0917 - Hypothesis names them
    seed: int,
    shards: int,
    laws: Laws,
    page_limit: int,
    fault_rate: float,
    steps: list[tuple[object, ...]],
    versions: tuple[int, ...],
) -> None:
    """Through reshards, throttling, expired iterators, restarts and limits, in any version of the offsets."""
    scenario = Scenario(seed, shards, fault_rate, laws=laws, page_limit=page_limit, versions=versions)
    scenario.run(steps, empty_triggers=4)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    event_size=st.sampled_from([1, 7, 500]),
    events=st.sampled_from([1, 3, 1_000]),
    faults=st.sampled_from([NO_FAULTS, ALL_FAULTS]),
    fault_rate=st.sampled_from([0.0, 0.0, 0.05]),
    steps=st.lists(STEP, max_size=25),
    versions=VERSIONS,
)
def test_every_record_arrives_once_in_order_by_subscriptions(  # noqa: PLR0917 - Hypothesis names them
    seed: int,
    shards: int,
    event_size: int,
    events: int,
    faults: Faults,
    fault_rate: float,
    steps: list[tuple[object, ...]],
    versions: tuple[int, ...],
) -> None:
    """For any failure of subscriptions and publishers."""
    agent = functools.partial(MemoryAgent, event_size=event_size, events=events, faults=faults, seed=seed)
    Scenario(seed, shards, fault_rate, agent=agent, versions=versions).run(steps, empty_triggers=6)
