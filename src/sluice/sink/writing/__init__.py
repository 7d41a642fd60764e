"""One task's writer: buffers entries, sends requests, and repeats refused entries (FLIP-171)."""
