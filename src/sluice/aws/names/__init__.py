"""ARNs, shards, and names of other connectors' options."""
