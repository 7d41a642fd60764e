"""A task's side of the token bucket that the tasks of a query share."""
