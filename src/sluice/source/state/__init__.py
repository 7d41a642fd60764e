"""The planner's knowledge of each split ahead of the last batch."""
