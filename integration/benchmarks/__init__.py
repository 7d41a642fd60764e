"""What is measured: each module compares things in one run and prints ratios. ``make bench`` runs all."""
