"""Draws a folder of small pictures to train on: circles, squares and triangles. They are synthetic.

python examples/draw_shapes.py photos
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

CLASSES = ("circle", "square", "triangle")


def draw(kind: str, size: int, random: random.Random) -> Image.Image:
    """One shape of random colour, size and place on a dark background."""
    picture = Image.new("RGB", (size, size), tuple(random.randint(0, 90) for _ in range(3)))
    radius = random.randint(size // 5, size // 3)
    x, y = (random.randint(radius, size - radius) for _ in range(2))
    colour = tuple(random.randint(140, 255) for _ in range(3))
    canvas = ImageDraw.Draw(picture)
    if kind == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif kind == "square":
        canvas.rectangle((x - radius, y - radius, x + radius, y + radius), fill=colour)
    else:
        canvas.polygon(((x, y - radius), (x - radius, y + radius), (x + radius, y + radius)), fill=colour)
    return picture


def main(folder: Path, per_class: int = 100, size: int = 48) -> None:
    source = random.Random(0)
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            draw(kind, size, source).save(folder / kind / f"{number:03}.png")
    print(f"{len(CLASSES) * per_class} pictures in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "photos"))
