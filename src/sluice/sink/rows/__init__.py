"""From rows to entries: schemas, sizes, values and JSON."""
