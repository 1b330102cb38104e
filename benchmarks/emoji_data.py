"""Write a table of emoji, `emoji.csv`, that `manyviews train --data` and `benchmarks.results` read.

    python -m benchmarks.emoji_data FOLDER

A row is an emoji: pictures of 64 x 64 by four artists, and its English name; a cell is empty where there is none. The
label is the group (faces, food, ...). A tenth each are for validation and for test, by a hash of the code points, so an
emoji stays in its split when others are added. Pictures and names are those of packages of npm; their licenses are
CC-BY 4.0 (Twemoji), Apache 2.0 (Noto), CC-BY-SA 4.0 (OpenMoji), MIT (Fluent) and Unicode's (names). Needs npm, and
`pip install resvg-py`.
"""

import csv
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

NAMES = "emojibase-data@17.0.0"
PICTURES = {
    "twemoji": ("emoji-datasource-twitter@16.0.0", "img/twitter/64/*.png"),
    "noto": ("emoji-datasource-google@16.0.0", "img/google/64/*.png"),
    "openmoji": ("openmoji@17.0.0", "color/svg/*.svg"),
    "fluent": ("@lobehub/fluent-emoji-flat@1.1.0", "assets/*.svg"),
}
"""By artist: the package, and its pictures, whose names are code points."""
SIZE = 64
COLOR_SELECTOR = "fe0f"
"""A code point that artists leave out or not: it only asks for a picture in color."""


def download(package: str, folder: Path) -> Path:
    """Download a package of npm and return the folder of its files."""
    target = folder / hashlib.sha256(package.encode()).hexdigest()[:8]
    target.mkdir()
    command = ["npm", "pack", package, "--silent", "--pack-destination", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (archive,) = target.iterdir()
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")
    return target / "package"


def normalize_code(code: str) -> str:
    """Return code points in lower case, without `COLOR_SELECTOR`."""
    return "-".join(part for part in code.lower().split("-") if part != COLOR_SELECTOR)


def read_picture(path: Path) -> Image.Image:
    """Read a picture (PNG or SVG) as SIZE x SIZE pixels."""
    data = path.read_bytes()
    if path.suffix == ".svg":
        import resvg_py

        data = bytes(resvg_py.svg_to_bytes(svg_string=data.decode(), width=SIZE, height=SIZE))
    return Image.open(io.BytesIO(data)).convert("RGBA").resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def choose_split(code: str) -> str:
    number = int(hashlib.sha256(code.encode()).hexdigest(), 16) % 10
    return {0: "test", 1: "valid"}.get(number, "train")


def list_emoji(names: Path) -> list[dict[str, Any]]:
    """List code, group and name of the emoji that have a group; components, such as skin tones, are left out."""
    groups = json.loads((names / "meta/groups.json").read_text())["groups"]
    emoji = json.loads((names / "en/data.json").read_text())
    rows = [(each, groups.get(str(each.get("group")))) for each in emoji]
    return [
        {"id": normalize_code(each["hexcode"]), "label": group, "en": each["label"]}
        for each, group in rows
        if group not in (None, "component")
    ]


def write_emoji(folder: Path) -> Path:
    """Write the pictures and the table into a folder."""
    with TemporaryDirectory() as temporary:
        rows = list_emoji(download(NAMES, Path(temporary)))
        for artist, (package, pattern) in PICTURES.items():
            paths = {normalize_code(path.stem): path for path in download(package, Path(temporary)).glob(pattern)}
            (folder / "images" / artist).mkdir(parents=True, exist_ok=True)
            for row in rows:
                target = Path("images", artist, f"{row['id']}.png")
                if row["id"] in paths:
                    read_picture(paths[row["id"]]).save(folder / target, optimize=True)
                row[artist] = target.as_posix() if row["id"] in paths else ""
    table = folder / "emoji.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("id", "split", "label", *PICTURES, "en"))
        writer.writeheader()
        writer.writerows({**row, "split": choose_split(row["id"])} for row in rows)
    return table


if __name__ == "__main__":
    print(write_emoji(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
