"""Which splits there are, and what it means that one is gone."""
