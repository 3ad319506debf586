"""Write the data of the interactive figure on the GSP page: local features of emoji collages.

winnow demo && python scripts/build_gsp_figure.py [winnow-demo/model]

Reads the demo's model (GSP+ZSR on the frozen default backbone) and four test collages at even distances. Writes their
projected local features and the model's prototypes as 16-bit integers with a scale, next to the pictures, to
docs/assets/gsp-figure-data.js. It is a script, because pages that are opened as files cannot fetch.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from winnow import Embedder
from winnow.data.emoji import load_emoji
from winnow.demo import select_evenly
from winnow.pooling import GSP

OUTPUT = Path(__file__).resolve().parents[1] / "docs/assets/gsp-figure-data.js"
PICTURES, DECIMALS = 4, 4


def quantize(values: NDArray[np.floating[Any]]) -> dict[str, Any]:
    """Return an array as 16-bit integers, in base64, with their scale and shape."""
    scale = float(np.abs(values).max()) / 32767
    integers = np.round(values / scale).astype("<i2")
    return {"shape": list(values.shape), "scale": scale, "int16": base64.b64encode(integers.tobytes()).decode()}


def restore(array: dict[str, Any]) -> NDArray[np.float64]:
    """Return the array that `quantize` stored."""
    integers = np.frombuffer(base64.b64decode(array["int16"]), "<i2")
    return (integers * array["scale"]).reshape(array["shape"])


def read_data(path: Path = OUTPUT) -> dict[str, Any]:
    """Return the content of the data file."""
    text = path.read_text()
    data: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return data


def picture_uri(image: Image.Image) -> str:
    """Return a picture as a data URI."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "WEBP", quality=85, method=6)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


@torch.no_grad()
def collect(model: Path) -> dict[str, Any]:
    """Return pictures, local features, and prototypes, with the mu and eps of the model."""
    embedder = Embedder.from_pretrained(model).eval()
    pooling = embedder.head.pooling
    if not isinstance(pooling, GSP):
        raise SystemExit(f"{model}: expected a model with GSP, got {type(pooling).__name__}. Run `winnow demo`.")
    images = load_emoji().test
    assert images is not None, "the bundled dataset has test classes"
    examples = []
    for index in select_evenly(len(images), PICTURES):
        image = images.read(index)
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        maps = embedder.backbone(pixels[None])  # a collage has the size of the network input
        features = embedder.head.project(maps)[0].double().numpy()
        name = images.class_names[int(images.labels[index])]
        examples.append({"name": name, "picture": picture_uri(image), "features": quantize(features)})
    rows, columns = maps.shape[2:]
    return {
        "rows": rows, "columns": columns, "mu": float(pooling.mu), "eps": float(pooling.eps),
        "prototypes": quantize(pooling.prototypes.double().numpy()), "images": examples,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=Path("winnow-demo/model"))
    data = json.dumps(collect(parser.parse_args().model), separators=(",", ":"))
    OUTPUT.write_text(f"window.winnowGspData = {data};\n")
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
