"""What benchmarks and demos say of a query that has failed."""

from __future__ import annotations

import pytest
from integration.support.queries import await_end
from pyspark.errors import StreamingQueryException


def test_a_failed_query_says_why_when_the_session_is_gone() -> None:
    """Spark's exception asks the JVM for its text when it is printed, which may be after the JVM's end."""

    class Failed:
        is_gone = False

        def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
            del timeout
            raise Error("")

    query = Failed()

    class Error(StreamingQueryException):
        def __str__(self) -> str:
            if query.is_gone:
                raise ConnectionError
            return "the Python worker did not connect back"

    with pytest.raises(RuntimeError) as caught:
        await_end(query)  # type: ignore[arg-type]
    query.is_gone = True
    assert "did not connect back" in str(caught.value)
