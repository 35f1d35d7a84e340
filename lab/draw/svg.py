"""A few words of SVG: what the drawings are made of. Colours are read on light and dark ground alike. Knows nothing of GENIUS."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

INK, SOFT, LINE, PAPER, ACCENT, WASH = "#1d1b26", "#5f5c6a", "#c9c6bd", "#fbfaf8", "#5646d6", "#eceafd"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Svg:
    """A drawing that grows by calls and is written as text."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str = "#fff", stroke: str = LINE, r: float = 10, wide: float = 1
    ) -> None:
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r}"'
        self.parts.append(f'<rect {shape} fill="{fill}" stroke="{stroke}" stroke-width="{wide}"/>')

    def text(
        self, x: float, y: float, words: str, size: float = 15, fill: str = INK, anchor: str = "start", weight: int = 400
    ) -> None:
        look = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(words)}</text>')

    def line(self, points: Sequence[tuple[float, float]], stroke: str = LINE, wide: float = 1.5, dash: str = "") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{wide}"{dashed}/>')

    def curve(self, start: tuple[float, float], end: tuple[float, float], stroke: str = LINE, wide: float = 1.5) -> None:
        (x, y), (u, v) = start, end
        middle = (x + u) / 2
        path = f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {v:.1f} {u:.1f} {v:.1f}"
        self.parts.append(f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{wide}"/>')

    def arrow(self, x: float, y: float, u: float, v: float, stroke: str = SOFT) -> None:
        """A straight arrow from left to right."""
        self.line([(x, y), (u, v)], stroke, 1.8)
        self.line([(u - 7, v - 5), (u, v), (u - 7, v + 5)], stroke, 1.8)

    def circle(self, x: float, y: float, r: float, fill: str, stroke: str = "none", wide: float = 1) -> None:
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{fill}" stroke="{stroke}" stroke-width="{wide}"/>'
        )

    def raw(self, part: str) -> None:
        self.parts.append(part)

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" font-family="{FONT}">'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" rx="16" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", ground, *self.parts, "</svg>"]) + "\n"
