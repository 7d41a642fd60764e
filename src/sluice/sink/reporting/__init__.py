"""Figures: recorded in tasks, merged and reported on the driver."""
