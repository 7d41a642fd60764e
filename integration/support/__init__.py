"""What the integration tests, the demo and the benchmarks share."""
