"""When and how fast the sink sends: causes of refusals, strategies (FLIP-242), the pace, token buckets.

Nothing here sees a thread, a socket or a destination.
"""
