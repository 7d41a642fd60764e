"""Where this checkout keeps things. Everything made at run time goes below BUILD, which git ignores."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
EMULATORS = ROOT / "integration" / "emulators"
