"""What tasks tell the planner of what they have read."""
