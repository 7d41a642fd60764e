"""Line charts as SVG, by hand: a picture is not worth a dependency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from integration.support.paths import BUILD

OUTPUT = BUILD / "benchmarks"
COLOURS = ("#1f6feb", "#d1242f", "#2da44e", "#8250df")
WIDTH, HEIGHT, LEFT, TOP = 760, 200, 80, 34


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One chart: lines over seconds, or over what `unit` says.

    `top` bounds what is shown, where one line would dwarf the others.
    """

    title: str
    lines: Sequence[Line]
    top: float | None = None
    unit: str = " s"


def draw(name: str, panels: Sequence[Panel], directory: Path = OUTPUT) -> Path:
    """Writes ``<name>.svg`` into a directory."""
    parts = []
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {number * (HEIGHT + 74)})">{_panel(panel)}</g>')
    size = f'width="{WIDTH + LEFT + 30}" height="{len(panels) * (HEIGHT + 74)}"'
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.svg"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
    return path


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines for point in line.points]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = panel.top or max((y for _, y in points), default=1.0) * 1.05 or 1.0

    def place(x: float, y: float) -> str:
        return f"{LEFT + x / right * WIDTH:.1f},{TOP + HEIGHT - min(max(y, 0.0), top) / top * HEIGHT:.1f}"

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>']
    for n in range(5):
        y = TOP + HEIGHT - n / 4 * HEIGHT
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_number(top * n / 4, top)}</text>')
        parts.append(
            f'<text x="{LEFT + n / 4 * WIDTH}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
            f"{right * n / 4:.3g}{panel.unit}</text>"
        )
    for n, line in enumerate(panel.lines):
        colour = "#666" if line.dashed else COLOURS[n % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        drawn = " ".join(place(x, y) for x, y in line.points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6"{dash} points="{drawn}"/>')
        parts.append(
            f'<text x="{LEFT + n * 160}" y="{TOP + HEIGHT + 34}" fill="{colour}">{escape(line.name)}</text>'
        )
    return "".join(parts)


def _number(value: float, top: float) -> str:
    return f"{value:,.0f}" if top >= 10 else f"{value:.2g}"
