"""The checks of ``sluice check``. None of them writes data, or makes anything that costs money."""
