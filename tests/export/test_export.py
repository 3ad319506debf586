"""Exported files return the outputs of the model, also for other batch and image sizes than the traced one."""

import json

import numpy as np
import pytest
import torch

from winnow import Embedder, export
from winnow.errors import ConfigError, MissingExtraError, ModelError
from winnow.export import ExportModule, SamePadding, export_model
from winnow.functional import gsp, soft_selection
from winnow.functional.threshold import selection_threshold, solve_by_bracketing


def make_model(pooling="gsp", **more):
    torch.manual_seed(0)
    settings = {"name": pooling, "num_prototypes": 4, "memory_size": 16, "eps": 20.0} if pooling == "gsp" else pooling
    with pytest.warns(UserWarning, match="random weights"):
        model = Embedder.create(
            {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 40, "crop": 32}, "dim": 8,
             "pooling": settings, **more}
        )  # fmt: skip
    with torch.no_grad():
        model.train()(torch.rand(16, 3, 32, 32))  # sets the prototypes
    assert model.prototypes_ready
    return model.eval()


def expected(model, images):
    """Return the vectors and weights of the model itself."""
    with torch.no_grad():
        weights = model(images, return_details=True).weights
    return model.encode(images), weights.numpy()


@pytest.mark.slow
def test_onnx_equals_the_model(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = make_model(normalize="ball")
    made = export_model(model, tmp_path / "model.onnx")
    assert made.outputs == ("embedding", "weights")
    assert made.any_size
    assert made.difference < 1e-4
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    for shape in ((5, 3, 32, 32), (1, 3, 48, 80), (2, 3, 37, 51)):
        images = torch.rand(shape)
        embedding, weights = session.run(None, {"images": images.numpy()})
        vectors, places = expected(model, images)
        assert np.abs(embedding - vectors).max() < 1e-4
        assert np.abs(weights.reshape(len(weights), -1) - places).max() < 1e-4
        assert weights.shape[1:] == (-(-shape[2] // 4), -(-shape[3] // 4))
        assert weights.max() > 1.5 * weights.mean()  # it selects
    about = json.loads(session.get_modelmeta().custom_metadata_map["winnow"])
    assert (about["resize"], about["crop"], about["normalize"]) == (40, 32, "ball")
    assert about["fingerprint"] == model.fingerprint()
    assert any("40" in step for step in about["preprocessing"])


@pytest.mark.parametrize("pooling", ["gsp", "gap", "gmp", "gemean", "netvlad"])
def test_torchscript_equals_the_model(tmp_path, pooling):
    model = make_model(pooling)
    made = export_model(model, tmp_path / "model.pt", "torchscript")
    extra = {"winnow.json": ""}
    loaded = torch.jit.load(made.path, _extra_files=extra)
    assert json.loads(extra["winnow.json"])["crop"] == 32
    images = torch.rand(3, 3, 48, 40)
    found = loaded(images)
    vectors = found[0] if len(made.outputs) == 2 else found
    assert np.abs(vectors.numpy() - model.encode(images)).max() < 1e-4
    if len(made.outputs) == 2:
        assert np.abs(found[1].flatten(1).numpy() - expected(model, images)[1]).max() < 1e-4


@pytest.mark.parametrize("eps", [1.0, 50.0, 1e4])
@pytest.mark.parametrize("masked", [False, True])
def test_bracketing_finds_the_root(eps, masked):
    torch.manual_seed(0)
    scores = -eps * torch.rand(40, 30, dtype=torch.float64)
    mask = torch.rand(40, 30) < 0.7 if masked else None
    if mask is not None:
        mask[:, 0] = True
    share = torch.linspace(0.02, 0.98, 40, dtype=torch.float64)[:, None]
    for prior in (None, torch.rand(40, 30, dtype=torch.float64)):
        masses = prior if prior is None or mask is None else prior * mask
        masses = None if masses is None else masses / masses.sum(dim=1, keepdim=True)
        tau = solve_by_bracketing(scores, share, mask, masses)
        s = torch.sigmoid(tau + scores)
        q = torch.ones_like(s) if mask is None else mask.double()
        q = q / q.sum(dim=1, keepdim=True) if masses is None else masses
        assert ((q * s).sum(dim=1, keepdim=True) - share).abs().max() < 1e-11
        if eps < 1e3 and prior is None:
            assert torch.allclose(tau, selection_threshold(scores, share, mask), rtol=0, atol=1e-12)


def test_bracketing_in_float32_keeps_weights(monkeypatch):
    """Exported weights equal the plain form, also with a mask and at the limits of mu."""
    torch.manual_seed(0)
    features, prototypes, mask = torch.randn(6, 20, 5), torch.randn(4, 5), torch.rand(6, 20) < 0.8
    mask[:, 0] = True
    for mu in (0.05, 0.5, 1.0):
        plain = gsp(features, prototypes, mu, 20.0, mask)
        monkeypatch.setattr("winnow.functional.threshold.is_exporting", lambda: True)
        monkeypatch.setattr("winnow.functional.closed_form.is_exporting", lambda: True)
        recorded = gsp(features, prototypes, mu, 20.0, mask)
        monkeypatch.undo()
        for mine, own in zip(recorded, plain, strict=True):
            assert torch.allclose(mine, own, atol=2e-5)
    assert torch.allclose(soft_selection(features[:, :, 0], 0.3).sum(dim=1), torch.ones(6))


def test_same_padding_equals_timm():
    from winnow.models import ensure_torchvision

    ensure_torchvision()
    from timm.layers import create_conv2d

    for kernel, stride, dilation in ((3, 2, 1), (5, 2, 1), (3, 1, 2), (7, 4, 1)):
        convolution = create_conv2d(2, 3, kernel, stride=stride, dilation=dilation, padding="same")
        mine = SamePadding(convolution)
        for size in ((9, 12), (16, 7)):
            x = torch.rand(2, 2, *size)
            assert torch.allclose(mine(x), convolution(x), atol=1e-6)


def test_export_does_not_change_the_model():
    model = make_model("gap").train()
    before = model.fingerprint()
    ExportModule(model)
    assert model.training
    assert model.fingerprint() == before


def test_errors(tmp_path, monkeypatch):
    model = make_model("gap")
    with pytest.raises(ConfigError, match="onnx"):
        export_model(model, tmp_path / "x", "onxx")
    monkeypatch.setattr(export, "_largest_difference", lambda *_: float("nan"))
    with pytest.raises(ModelError, match="cannot be exported"):
        export_model(model, tmp_path / "x.pt", "torchscript")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("winnow.export.importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"\[onnx\]"):
        export_model(model, tmp_path / "x.onnx")
