"""What plans a query of Kinesis, and its agents as the planner sees them."""
