"""One task's writer: buffers entries, sends requests, and repeats what was refused (FLIP-171)."""
