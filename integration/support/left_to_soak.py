"""Variants of tests that `make soak` runs, and `make test` does not: slow, and a sibling stays.

A sibling is the same test with the other publisher, store or fault, or the chaos of `.ci/run`, which kills
drivers all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

_SECONDS = {
    "test_compaction_kills.py::test_a_killed_driver_that_compacts[manifest-parquet-10]": 10,
    "test_compaction_kills.py::test_killed_before_every_call[manifest-parquet-15]": 10,
    "test_data_loss.py::test_a_logged_batch_is_never_cut_short[recreate-"
    "stream {} was deleted and created again]": 20,
    "test_data_loss.py::test_a_logged_batch_is_never_cut_short[vanish-{}/shardId-]": 20,
    "test_data_loss.py::test_a_start_at_the_latest_outlives_the_retention[polling]": 15,
    "test_data_loss.py::test_a_stream_that_is_created_again_while_the_query_runs[efo-300ms]": 10,
    "test_data_loss.py::test_a_stream_that_is_created_again_while_the_query_runs[polling-300ms]": 10,
    "test_data_loss.py::test_records_that_expire_while_the_query_is_stopped[polling]": 60,
    "test_demo.py::test_an_interrupted_demo_leaves_nothing[2-600]": 40,
    "test_dynamodb_streams.py::test_a_killed_driver_reads_the_same_batches_again[once]": 40,
    "test_fan_out.py::test_faults_that_pass_change_nothing[bad checksum]": 10,
    "test_fan_out.py::test_faults_that_pass_change_nothing[broken service]": 10,
    "test_fan_out.py::test_faults_that_pass_change_nothing[error event]": 10,
    "test_fan_out.py::test_faults_that_pass_change_nothing[in use]": 10,
    "test_fan_out.py::test_faults_that_pass_change_nothing[reset]": 10,
    "test_fan_out_cluster.py::test_a_silent_agent_on_a_worker_host": 40,
    "test_fan_out_kills.py::test_a_driver_that_is_killed": 60,
    "test_laws.py::test_a_stranger_who_polls_the_same_shards": 30,
    "test_laws.py::test_backlogs_of_large_records[polling]": 40,
    "test_on_time.py::test_a_backlog_of_throttled_shards[polling]": 30,
    "test_on_time.py::test_without_a_drift_throttled_shards_are_left_behind": 40,
    "test_replay.py::test_a_killed_driver_reads_the_same_batches_again[efo-0]": 60,
    "test_reshard.py::test_reshards_while_the_query_is_stopped[polling]": 15,
    "test_s3.py::test_memory_does_not_grow_with_the_rows[ministack-jsonl]": 20,
    "test_s3_kills.py::test_a_killed_driver_writes_every_row_once[moto-parquet-2]": 60,
    "test_s3_kills.py::test_killed_at_every_step[moto-jsonl-manifest-2]": 50,
    "test_service_faults.py::test_every_call_fails_at_every_moment[polling]": 50,
    "test_service_faults.py::test_listings_that_do_not_come[polling]": 15,
    "test_sink_kills.py::test_no_row_of_a_committed_epoch_is_missing[http]": 50,
}


def mark(items: Sequence[pytest.Item]) -> None:
    """Marks them as what `make soak` runs."""
    for item in items:
        seconds = _SECONDS.get(item.nodeid.rpartition("integration/")[2])
        if seconds is not None:
            item.add_marker(pytest.mark.soak(seconds=seconds))
