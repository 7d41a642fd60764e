"""How long the modules of tests take, roughly, for those that take long."""

from __future__ import annotations

__all__ = ["seconds_of"]

_A_TEST = 0.05
_SECONDS = {
    "integration/test_soak.py": 600,
    "integration/test_replay.py": 140,
    "integration/test_source.py": 100,
    "integration/test_fan_out_kills.py": 100,
    "integration/test_s3_kills.py": 95,
    "integration/test_demo.py": 90,
    "integration/test_fan_out.py": 85,
    "integration/test_data_loss.py": 80,
    "integration/test_bad_input.py": 75,
    "integration/test_recorded_checkpoints.py": 55,
    "integration/test_model.py": 50,
    "integration/test_fan_out_cluster.py": 70,
    "integration/test_reshard.py": 60,
    "integration/test_s3.py": 60,
    "integration/test_end_to_end.py": 50,
    "integration/test_readme_examples.py": 30,
    "integration/test_destinations.py": 25,
    "integration/test_servers.py": 15,
    "integration/test_sink_failures.py": 12,
    "integration/test_aggregation.py": 10,
}


def seconds_of(file: str, tests: int) -> float:
    """What a module of so many tests takes."""
    return _SECONDS.get(file, tests * _A_TEST)
