"""A log, and how it is read from a position on: which record comes first, and what a gap means."""
