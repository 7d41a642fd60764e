"""Any position, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Position

__all__ = ["POSITION"]

MILLIS = st.integers(0, 4_000_000_000_000)
HINT = st.none() | MILLIS.map(lambda millis: millis * 1000)
NUMBER = st.integers(0, 10**57).map(str) | st.integers(0, 10**20).map(lambda number: f"{number:056d}")
POSITION: st.SearchStrategy[Position] = st.one_of(
    st.builds(AtHorizon, st.none() | NUMBER, HINT, HINT),
    st.builds(AtTime, st.integers(0, 4_000_000_000_000_000), HINT, HINT, st.none() | NUMBER),
    st.builds(
        After,
        NUMBER,
        st.none() | st.integers(0, 5),
        next=st.none() | NUMBER,
        arrival=HINT,
        caught_up_at=HINT,
        start_caught_up_at=HINT,
    ),
    st.builds(Closed, HINT, HINT),
)
