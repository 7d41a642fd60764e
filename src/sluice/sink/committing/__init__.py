"""The end of an epoch, on the driver (FLIP-143)."""
