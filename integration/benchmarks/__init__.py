"""Benchmarks. Each module compares several ways in one run and prints ratios. ``make bench`` runs all."""
