"""How long the modules of tests take, roughly, for those that take long."""

from __future__ import annotations

_A_TEST = 0.05
_SECONDS = {
    "integration/test_soak.py": 600,
    "integration/test_data_loss.py": 130,
    "integration/test_laws.py": 110,
    "integration/test_s3.py": 105,
    "integration/test_replay.py": 100,
    "integration/test_source.py": 95,
    "integration/test_s3_kills.py": 85,
    "integration/test_fan_out.py": 80,
    "integration/test_reshard.py": 95,
    "integration/test_bad_input.py": 70,
    "integration/test_demo.py": 70,
    "integration/test_service_faults.py": 65,
    "integration/test_fan_out_kills.py": 60,
    "integration/test_fan_out_cluster.py": 80,
    "integration/test_fan_out_silence.py": 60,
    "integration/test_sink_kills.py": 50,
    "integration/test_on_time.py": 60,
    "integration/test_query_bucket.py": 90,
    "integration/test_recorded_checkpoints.py": 35,
    "integration/test_dashboard.py": 45,
    "integration/test_monitoring.py": 25,
    "integration/test_end_to_end.py": 35,
    "integration/test_sql.py": 40,
    "integration/test_connect.py": 40,
    "integration/test_pipelines.py": 90,
    "integration/test_destinations.py": 30,
    "integration/test_polling_agent.py": 20,
    "integration/test_readme_examples.py": 15,
    "integration/test_dynamodb_streams.py": 25,
    "integration/test_custom_source.py": 25,
    "integration/test_examples.py": 15,
    "integration/test_many_shards.py": 22,
    "integration/test_model.py": 5,
    "integration/test_chaos.py": 10,
    "integration/test_servers.py": 10,
    "integration/test_query_server.py": 30,
    "integration/test_aggregation.py": 8,
    "integration/test_sink_failures.py": 6,
}


def seconds_of(file: str, tests: int) -> float:
    """What a module of so many tests takes."""
    return _SECONDS.get(file, tests * _A_TEST)
