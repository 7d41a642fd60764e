"""What ``sluice check`` looks at. Nothing here writes data, or makes anything that costs."""
