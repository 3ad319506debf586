"""The embedding model: encode, explain, save, load, model card, and fingerprint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from winnow import Embedder
from winnow.errors import ConfigError, DataError, ModelError
from winnow.integrity import SUMS
from winnow.models import ModelConfig
from winnow.models.config import fingerprint_settings
from winnow.pooling import POOLINGS

SMALL = {
    "image": {"resize": 32, "crop": 32},
    "dim": 8,
    "pooling": {"name": "gsp", "num_prototypes": 4, "memory_size": 16},
}


def small(**changes: object) -> Embedder:
    torch.manual_seed(0)
    settings = {"backbone": {"name": "resnet20", "weights": "random"}, **SMALL, **changes}
    with pytest.warns(UserWarning, match="random weights"):
        return Embedder.create(settings).eval()


def random_image(seed: int = 0, size: tuple[int, int] = (50, 40)) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def test_paths_images_and_tensors_give_equal_embeddings(tmp_path: Path) -> None:
    embedder, image = small(), random_image()
    image.save(tmp_path / "a.png")
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    vectors = embedder.encode([tmp_path / "a.png", str(tmp_path / "a.png"), image, tensor, tensor / 255])
    assert vectors.shape == (5, 8)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - vectors[0]).max() < 1e-6
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_one_image_equals_a_list_of_one_and_an_empty_list_gives_no_rows() -> None:
    embedder, image = small(), random_image()
    assert np.array_equal(embedder.encode(image), embedder.encode([image]))
    assert embedder.encode([]).shape == (0, 8)


def test_a_batch_tensor_is_not_resized() -> None:
    embedder = small()
    batch = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert np.allclose(embedder.encode(batch, normalize=False), embedder(batch).numpy(), atol=1e-6)


def test_uint8_and_float_batches_give_equal_embeddings() -> None:
    batch = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    embedder = small()
    assert np.allclose(embedder.encode(batch), embedder.encode(batch / 255), atol=1e-6)


def test_embeddings_do_not_depend_on_batch_size_and_the_mode_is_restored() -> None:
    embedder = small().train()
    images = [random_image(i) for i in range(5)]
    assert np.allclose(embedder.encode(images, batch_size=2), embedder.encode(images, batch_size=64), atol=1e-6)
    assert embedder.training


def test_gray_images_are_converted_to_rgb() -> None:
    gray = random_image().convert("L")
    assert np.allclose(small().encode(gray), small().encode(gray.convert("RGB")), atol=1e-6)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no image")
    with pytest.raises(DataError, match=r"bad\.jpg"):
        small().encode([tmp_path / "bad.jpg"])


def test_a_saved_model_loads_with_equal_embeddings(tmp_path: Path) -> None:
    embedder = small().train()
    for _ in range(4):
        embedder(torch.rand(4, 3, 32, 32))  # fills the memory, which sets the prototypes
    assert embedder.prototypes_ready
    embedder.save_pretrained(tmp_path / "m", metrics={"MAP@R": 0.25})
    again = Embedder.from_pretrained(tmp_path / "m")
    assert again.prototypes_ready
    assert again.config == embedder.config
    assert np.array_equal(again.encode(random_image()), embedder.encode(random_image()))
    card = (tmp_path / "m" / "README.md").read_text()
    assert "25.00" in card
    assert "never set" not in card


def test_the_card_warns_of_prototypes_that_were_never_set(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path)
    assert "uses average pooling" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("normalize", "measure", "length"),
    [("unit", "cosine similarity", "), unit length"), ("ball", "Euclidean distance", "), at most unit length")],
)
def test_the_card_names_the_distance(tmp_path: Path, normalize: str, measure: str, length: str) -> None:
    small(normalize=normalize).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert f"Compare vectors by {measure}." in card
    assert length in card


def test_folders_without_a_valid_model_raise(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no saved model"):
        Embedder.from_pretrained(tmp_path)
    small().save_pretrained(tmp_path)
    (tmp_path / SUMS).unlink()  # the files are changed on purpose
    config = json.loads((tmp_path / "config.json").read_text())
    config["dim"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="weights of another model"):
        Embedder.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"color": "red"}')
    with pytest.raises(ModelError, match="config cannot be read"):
        Embedder.from_pretrained(tmp_path)


def test_pooling_maps_match_the_network_input() -> None:
    seen = small().explain([random_image(), random_image(1)])
    assert len(seen) == 2
    assert seen[0].image.size == (32, 32)
    assert seen[0].weights is not None
    assert seen[0].weights.shape == (8, 8)
    assert seen[0].weights.sum() == pytest.approx(1, abs=1e-5)


def test_a_model_config_rejects_unknown_fields() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        ModelConfig(color="red")  # type: ignore[call-arg]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pooling'"):
        Embedder.create({"poling": "gsp"})
    with pytest.raises(ConfigError, match="dim='wide'"):
        Embedder.create({"dim": "wide"})


def test_fingerprints_do_not_change_when_a_setting_is_added() -> None:
    class Later(ModelConfig):
        new: float = 0.0

    model = small()
    before = model.fingerprint()
    settings = model.config.model_dump()
    model.config = Later(**settings)
    assert model.fingerprint() == before
    model.config = Later(**settings, new=0.5)
    assert model.fingerprint() != before
    model.config = ModelConfig(**{**settings, "image": {"resize": 32, "crop": 24}})
    assert model.fingerprint() != before
    assert fingerprint_settings(ModelConfig()) == {
        "pooling": {"name": POOLINGS.default}
    }  # no setting of the pooling either
    own = {"name": "gsp", "mu": 0.123}
    assert fingerprint_settings(ModelConfig(pooling=own, dim=3)) == {"pooling": own, "dim": 3}


def test_state_keys_of_version_0_1_0_load_and_keep_the_fingerprint(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = small(pooling={"name": "netvlad", "clusters": 2})
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    (tmp_path / SUMS).unlink()  # version 0.1.0 wrote none
    save_file({key.replace("centers", "centres"): value for key, value in load_file(file).items()}, file)
    again = Embedder.from_pretrained(tmp_path)
    assert np.array_equal(again.encode(random_image()), model.encode(random_image()))
    assert again.fingerprint() == model.fingerprint()


def test_a_pretrained_network_gives_mean_features(tmp_path: Path) -> None:
    model = Embedder.pretrained().eval()
    pixels = torch.rand(2, 3, model.config.image.crop, model.config.image.crop)
    with torch.inference_mode():
        features = model.backbone(pixels)
        found = model(pixels)
    torch.testing.assert_close(found, features.flatten(2).mean(dim=2))
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        torch.testing.assert_close(Embedder.from_pretrained(tmp_path).eval()(pixels), found, rtol=0, atol=0)
