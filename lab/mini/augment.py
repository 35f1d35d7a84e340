"""Drawings -> the tower's input: redrawn a little differently each time, so that another hand's drawing is no surprise.

Place, size, tilt and stroke width change for all; colours only where colour is not what is asked for.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.encoders.mini import MEAN, STD

SIZE = 64


def plain(drawings: Tensor, size: int = SIZE) -> Tensor:
    """(n, 3, s, s) uint8 -> (n, 3, size, size) as `Pixels` makes them: antialiased, normalised."""
    small = F.interpolate(drawings.float() / 255, size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return normalise(small.clamp(0, 1))


def normalise(x: Tensor) -> Tensor:
    return (x - MEAN[0]) / STD[0]


@torch.no_grad()
@torch.autocast("cuda", enabled=False)  # type: ignore[untyped-decorator]
def augmented(drawings: Tensor, free: Tensor) -> Tensor:
    """The same at random; `free` (n,) bool: colours may change, and it may tilt."""
    n, device = len(drawings), drawings.device

    def chance(p: float) -> Tensor:
        return (torch.rand(n, 1, 1, 1, device=device) < p) & free[:, None, None, None]

    ink = 1 - drawings.float() / 255  # white is 0, outside too
    ink = F.grid_sample(ink, _grid(n, free), mode="bilinear", padding_mode="zeros", align_corners=False)
    thick = F.max_pool2d(ink, 3, stride=1, padding=1)
    ink = torch.where(torch.rand(n, 1, 1, 1, device=device) < 0.15, thick, ink)
    thin = -F.max_pool2d(-ink, 3, stride=1, padding=1)
    ink = torch.where(torch.rand(n, 1, 1, 1, device=device) < 0.08, thin, ink)
    x = 1 - F.avg_pool2d(ink, 2)  # (n, 3, 64, 64)
    grey = x.mean(1, keepdim=True)
    x = torch.where(chance(0.08), grey.expand_as(x), x)
    front, back = torch.rand(n, 3, 1, 1, device=device) * 0.7, 0.75 + 0.25 * torch.rand(n, 3, 1, 1, device=device)
    x = torch.where(chance(0.15), front + (back - front) * grey, x)  # one colour on another
    gain = 1 + 0.3 * (torch.rand(n, 3, 1, 1, device=device) - 0.5)
    x = torch.where(chance(0.25), (x * gain).clamp(0, 1), x)
    x = torch.where(chance(0.12), 1 - x, x)  # light on dark
    return normalise(torch.where(_hole(n, device) & chance(0.25), 1.0, x))


def _hole(n: int, device: torch.device) -> Tensor:
    """(n, 1, SIZE, SIZE) bool: a rectangle that is wiped out, so that no single part decides."""
    at, middle = torch.arange(SIZE, device=device), torch.rand(2, n, 1, device=device) * SIZE
    half = 4 + 9 * torch.rand(2, n, 1, device=device)
    inside = (at - middle).abs() < half  # (2, n, SIZE)
    return (inside[0, :, :, None] & inside[1, :, None, :])[:, None]


@torch.no_grad()
def overlay(main: Tensor, badge: Tensor) -> Tensor:
    """(n, 3, s, s) uint8: each drawing with a small second one in a corner, as icon makers combine them."""
    out, side = main.clone(), main.shape[2]
    for k, rows in enumerate(torch.arange(len(main), device=main.device).chunk(8)):
        size = side * (5 if k < 4 else 6) // 12
        small = F.interpolate(badge[rows].float(), size=(size, size), mode="bilinear", antialias=True, align_corners=False)
        top, left = (side - size) * (k % 2), (side - size) * (k // 2 % 2)
        out[rows, :, top : top + size, left : left + size] = small.clamp(0, 255).to(torch.uint8)
    return out


def _grid(n: int, free: Tensor) -> Tensor:
    """(n, 128, 128, 2): where each output place looks; twice the size, to be averaged down."""
    device = free.device

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, device=device)

    scale = torch.where(torch.rand(n, device=device) < 0.3, torch.ones(n, device=device), uniform(0.85, 1.4))  # > 1: smaller
    stretch = 1 + 0.2 * (torch.rand(n, device=device) - 0.5)
    angle = torch.where(free, uniform(-1, 1) * math.radians(12), torch.zeros(n, device=device))
    cos, sin = angle.cos() * scale, angle.sin() * scale
    x, y = uniform(-0.12, 0.12), uniform(-0.12, 0.12)
    rows = torch.stack([torch.stack([cos * stretch, -sin, x], 1), torch.stack([sin, cos / stretch, y], 1)], 1)  # (n, 2, 3)
    return F.affine_grid(rows, [n, 3, 2 * SIZE, 2 * SIZE], align_corners=False)
