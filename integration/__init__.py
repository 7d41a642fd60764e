"""Tests with real Spark, real sockets and emulators that are not ours; the demo and the benchmarks."""
