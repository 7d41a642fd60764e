"""A process that keeps subscriptions open, or polls shards near their tip, between batches."""
