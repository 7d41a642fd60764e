"""Which splits exist, and whether a missing one is a data loss."""
