"""Fashion-MNIST (Xiao et al., 2017)."""

from __future__ import annotations

from typing import ClassVar

from winnow.data.sets.base import Source
from winnow.data.sets.mnist import Mnist


class FashionMnist(Mnist):
    """Clothes, in the format of MNIST."""

    name = "fashion_mnist"
    title = "Fashion-MNIST"
    about = "70,000 pictures of clothes of 28 x 28 pixels; the test has other images of the same 10 classes"
    terms = "MIT"
    home = "https://github.com/zalandoresearch/fashion-mnist"
    sources = tuple(
        Source(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file}", file, md5)
        for file, md5 in (
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        )
    )
    checksums: ClassVar = {
        "train": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
        "test": ("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
    }
