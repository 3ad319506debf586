"""Build the bundled emoji dataset `src/winnow/data/emoji` from published artwork.

Usage:

    pip install pillow numpy resvg-py
    python scripts/build_emoji.py [--packages FOLDER] [--out FOLDER] [--pairs]

The artwork comes from the npm packages named in `ARTISTS` and the emoji names and categories from `UNICODE`; they are
fetched by `npm pack` into FOLDER, by default a temporary one. Writes `drawings_<artist>.webp`, one atlas of square
tiles per artist, and `index.json`, one line per emoji. An atlas contains its tiles row by row in the order of the emoji
that list the artist. The same packages and library versions give the same bytes. `--pairs` prints the most similar
foreground emoji, to find near duplicates. Licenses: see `LICENSES.md` in the same folder.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import subprocess
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import resvg_py
from PIL import Image

UNICODE = "unicode-emoji-json@0.9.0"
ARTISTS = {
    "noto": "@iconify-json/noto@1.2.9",
    "twemoji": "@iconify-json/twemoji@1.2.5",
    "fluent": "@lobehub/fluent-emoji-3d@1.1.0",
    "emojione": "@iconify-json/emojione@1.2.3",
    "fluent-flat": "@iconify-json/fluent-emoji-flat@1.2.6",
}
# Every foreground emoji has drawings by these three artists; the other artists lack several.
REQUIRED = ("noto", "twemoji", "fluent")
CLUTTER_ARTISTS = {"Symbols": ("noto", "twemoji", "fluent"), "Flags": ("twemoji",)}
FOREGROUND = ("Animals & Nature", "Food & Drink", "Objects", "Activities", "Travel & Places")
FRACTIONS = {"train": 0.53, "val": 0.12, "test": 0.35}

TILE = 64  # pixels a side of a tile
ART = 62  # longer side of a drawing; the margin is for its smooth edge
COLUMNS = 32
QUALITY = 60

# Of near duplicates, whose classes are not distinguishable, one emoji stays; these are excluded.
EXCLUDED = """
guide dog|service dog|black cat|two-hump camel|polar bear|black bird|water buffalo|spouting whale|shamrock|empty nest
green apple|lime|brown mushroom|clinking beer mugs|fork and knife
muted speaker|speaker low volume|speaker medium volume|bell with slash|musical notes|mobile phone with arrow
low battery|dvd|camera with flash|magnifying glass tilted right|green book|blue book|orange book|notebook
page with curl|yen banknote|euro banknote|pound banknote|chart increasing with yen|chart decreasing
e-mail|incoming envelope|envelope with arrow|inbox tray|closed mailbox with lowered flag
open mailbox with raised flag|open mailbox with lowered flag|pen|black nib|open file folder|calendar|spiral calendar
linked paperclips|unlocked|locked with pen|locked with key|hammer and pick|woman’s sandal
2nd place medal|3rd place medal|sports medal|softball|rugby football|club suit
globe showing Americas|globe showing Asia-Australia|mountain|house with garden|cityscape at dusk
oncoming taxi|oncoming automobile|airplane arrival|motorized wheelchair|horizontal traffic light
hourglass not done|new moon|waxing crescent moon|first quarter moon|waxing gibbous moon|waning gibbous moon
last quarter moon|waning crescent moon|new moon face|first quarter moon face|glowing star
sun behind small cloud|sun behind large cloud|cloud with lightning and rain|umbrella|snowman without snow
"""
# The name matches, but the drawing shows another object: the game, not the insect.
MISNAMED = {("emojione", "cricket")}
CLOCK = re.compile(r"^(?!twelve o’clock)\w+(-thirty| o’clock)$")


@dataclass
class Emoji:
    """One emoji, and its drawings by artist: (TILE, TILE) RGBA."""

    name: str
    codepoint: str
    category: str
    role: str
    split: str = ""
    drawings: dict[str, Image.Image] = field(default_factory=dict)


def pack(package: str, folder: Path) -> tarfile.TarFile:
    """Open an npm package; fetch it if the folder does not contain it."""
    name, version = package.rsplit("@", 1)
    path = folder / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
    if not path.exists():
        command = ["npm", "pack", package, "--pack-destination", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tarfile.open(path)


def read_json(tar: tarfile.TarFile, name: str) -> dict:
    file = tar.extractfile(f"package/{name}")
    assert file is not None
    return json.load(file)


def squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class SvgArtist:
    """Drawings from an icon set of SVG bodies, found by code point, or by name without code points."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.icons = read_json(tar, "icons.json")
        chars = read_json(tar, "chars.json")
        self.by_codepoint = {code.replace("-fe0f", ""): name for code, name in chars.items()}
        self.by_name = {} if chars else {squeezed(n): n for n in [*self.icons["icons"], *self.icons["aliases"]]}

    def draw(self, emoji: Emoji) -> Image.Image | None:
        name = self.by_codepoint.get(emoji.codepoint) or self.by_name.get(squeezed(emoji.name))
        if name is None:
            return None
        icon = self.icons["icons"].get(name) or self.icons["icons"][self.icons["aliases"][name]["parent"]]
        width, height = (icon.get(side, self.icons.get(side, 16)) for side in ("width", "height"))
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
        png = resvg_py.svg_to_bytes(svg_string=svg, width=4 * TILE, height=4 * TILE, skip_system_fonts=True)
        return Image.open(io.BytesIO(bytes(png))).convert("RGBA")


class RasterArtist:
    """Drawings from one picture file per code point."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        self.files = {
            Path(member.name).stem.replace("-fe0f", ""): member
            for member in tar.getmembers()
            if member.name.startswith("package/assets/")
        }

    def draw(self, emoji: Emoji) -> Image.Image | None:
        member = self.files.get(emoji.codepoint)
        file = self.tar.extractfile(member) if member else None
        return Image.open(io.BytesIO(file.read())).convert("RGBA") if file else None


def as_tile(picture: Image.Image) -> Image.Image:
    """Crop the margin of a drawing and center it in a tile, with a longer side of ART pixels."""
    # The threshold ignores faint shadows, which would make the drawing smaller.
    box = picture.getchannel("A").point(lambda a: 255 * (a > 24)).getbbox()
    assert box is not None
    picture = picture.crop(box)
    scale = ART / max(picture.size)
    size = [max(1, round(side * scale)) for side in picture.size]
    tile = Image.new("RGBA", (TILE, TILE))
    tile.paste(picture.resize((size[0], size[1]), Image.Resampling.LANCZOS), [(TILE - side) // 2 for side in size])
    return tile


def choose(folder: Path) -> list[Emoji]:
    """Return the emoji of the dataset with their drawings, foreground first, without splits."""
    artists = {
        artist: (RasterArtist if artist == "fluent" else SvgArtist)(pack(package, folder))
        for artist, package in ARTISTS.items()
    }
    excluded = set(re.split(r"[|\n]", EXCLUDED.strip()))
    chosen = []
    entries = read_json(pack(UNICODE, folder), "data-by-emoji.json")
    assert excluded <= (names := {entry["name"] for entry in entries.values()}), excluded - names
    for text, entry in entries.items():
        name, category = entry["name"], entry["group"]
        role = "foreground" if category in FOREGROUND else "clutter"
        if (role == "clutter" and category not in CLUTTER_ARTISTS) or name in excluded or CLOCK.match(name):
            continue
        codepoint = "-".join(f"{ord(char):x}" for char in text if ord(char) != 0xFE0F)
        emoji = Emoji(name, codepoint, category, role)
        for artist in CLUTTER_ARTISTS.get(category, tuple(ARTISTS)):
            picture = artists[artist].draw(emoji)
            if picture is not None and (artist, name) not in MISNAMED:
                emoji.drawings[artist] = as_tile(picture)
        if emoji.drawings if role == "clutter" else set(REQUIRED) <= set(emoji.drawings):
            chosen.append(emoji)
    return sorted(chosen, key=lambda emoji: emoji.role, reverse=True)


def likeness(emoji: list[Emoji], artist: str) -> np.ndarray:
    """Return (N, N): mean absolute difference, 0 to 255, of the drawings by one artist on gray."""
    thumbs = []
    for one in emoji:
        ground = Image.new("RGBA", (TILE, TILE), (128, 128, 128, 255))
        ground.alpha_composite(one.drawings[artist])
        thumbs.append(np.asarray(ground.convert("RGB").resize((16, 16), Image.Resampling.BOX), dtype=np.float32))
    flat = np.stack(thumbs).reshape(len(emoji), -1)
    return np.stack([np.abs(flat - row).mean(axis=1) for row in flat])


def without_twins(clutter: list[Emoji]) -> list[Emoji]:
    """Drop clutter that looks like an earlier one, such as equal flags, which could occur in two splits."""
    both = [emoji for emoji in clutter if "twemoji" in emoji.drawings]
    difference = likeness(both, "twemoji")
    twins = {both[i].name for i in range(len(both)) if (difference[i, :i] < 4).any()}
    print("clutter dropped as a duplicate:", ", ".join(sorted(twins)))
    return [emoji for emoji in clutter if emoji.name not in twins]


def assign_splits(emoji: list[Emoji]) -> None:
    """Assign splits by a shuffle within each category, so all splits have the same mixture."""
    for category in sorted({one.category for one in emoji}):
        members = [one for one in emoji if one.category == category]
        random.Random(category).shuffle(members)
        train, val = (round(FRACTIONS[split] * len(members)) for split in ("train", "val"))
        for position, one in enumerate(members):
            one.split = "train" if position < train else "val" if position < train + val else "test"


def write(emoji: list[Emoji], out: Path) -> None:
    for artist in ARTISTS:
        tiles = [one.drawings[artist] for one in emoji if artist in one.drawings]
        atlas = Image.new("RGBA", (COLUMNS * TILE, -(-len(tiles) // COLUMNS) * TILE))
        for number, tile in enumerate(tiles):
            atlas.paste(tile, (number % COLUMNS * TILE, number // COLUMNS * TILE))
        path = out / f"drawings_{artist}.webp"
        atlas.save(path, quality=QUALITY, alpha_quality=70, method=6)
        print(f"{artist}: {len(tiles)} drawings, {path.stat().st_size:,} bytes")
    lines = [
        json.dumps(
            {
                "name": one.name,
                "codepoint": one.codepoint,
                "category": one.category,
                "role": one.role,
                "split": one.split,
                "artists": list(one.drawings),
            },
            ensure_ascii=False,
        )
        for one in emoji
    ]
    head = json.dumps({"tile": TILE, "columns": COLUMNS, "artists": list(ARTISTS)})[:-1]
    text = f'{head}, "emoji": [\n' + ",\n".join(lines) + "\n]}\n"
    (out / "index.json").write_text(text, encoding="utf-8")


def main() -> None:
    default = Path(__file__).parent.parent / "src" / "winnow" / "data" / "emoji"
    parser = argparse.ArgumentParser(description="Build the bundled emoji drawings.")
    parser.add_argument("--packages", type=Path, help="folder of the npm packages (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    parser.add_argument("--pairs", action="store_true", help="print the foreground emoji most alike")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.packages or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = choose(folder)
    foreground = [one for one in chosen if one.role == "foreground"]
    if arguments.pairs:
        difference = np.mean([likeness(foreground, artist) for artist in REQUIRED], axis=0)
        rows, columns = np.triu_indices(len(foreground), 1)
        for k in difference[rows, columns].argsort()[:60]:
            i, j = rows[k], columns[k]
            print(f"{difference[i, j]:5.1f}  {foreground[i].name} | {foreground[j].name}")
    emoji = foreground + without_twins([one for one in chosen if one.role == "clutter"])
    assign_splits(emoji)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(emoji, arguments.out)
    print(Counter((one.role, one.split) for one in emoji))
    print(Counter((one.role, len(one.drawings)) for one in emoji))
    total = sum(path.stat().st_size for path in arguments.out.iterdir() if path.is_file())
    print(f"total: {total:,} bytes")


if __name__ == "__main__":
    main()
