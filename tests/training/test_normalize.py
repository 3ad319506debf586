"""Training, validation, and saved models normalize embeddings as configured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.test_trainer import make_trainer, small_config
from winnow.evaluation import retrieval_metrics
from winnow.functional import NORMALIZERS
from winnow.losses import ContrastiveLoss
from winnow.models import Embedder
from winnow.training import load_config
from winnow.training.engine.stream import run_to_end

BY_HAND = {
    "unit": lambda u: u / u.norm(dim=1, keepdim=True),
    "ball": lambda u: torch.stack([x / x.norm() if x.norm() > 1 else x for x in u]),
}
both = pytest.mark.parametrize("name", list(NORMALIZERS))


@both
def test_vectors_are_normalized_as_configured(name: str) -> None:
    vectors = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0)) * 0.7
    for one, found in zip(vectors, NORMALIZERS[name](vectors), strict=True):
        torch.testing.assert_close(found, BY_HAND[name](one))


@both
def test_loss_and_validation_use_the_same_vectors(name: str) -> None:
    trainer = make_trainer(small_config("pooling=gap", "loss=c2", f"normalize={name}"))
    model = trainer.objective.model
    with torch.no_grad():
        model.projection.weight *= 1.6  # so that some embeddings are shorter than 1 and others longer
    embeddings = model(trainer.val.test(range(36))).detach()
    assert 0 < (embeddings.norm(dim=1) < 1).sum() < 36
    labels = torch.from_numpy(trainer.val.labels)
    prepared = BY_HAND[name](embeddings)
    run_to_end(trainer._iter_validate({}, 0.0))
    wanted = retrieval_metrics(prepared, labels)
    assert trainer.state.history[0]["val/MAP@R"] == pytest.approx(wanted["MAP@R"])
    loss = trainer.objective.loss
    assert isinstance(loss, ContrastiveLoss)
    d = torch.cdist(prepared, prepared, compute_mode="donot_use_mm_for_euclid_dist")
    same = (labels[:, None] == labels) & ~torch.eye(36, dtype=torch.bool)
    push = (loss.neg_margin - d[labels[:, None] != labels]).relu()
    expected = d[same][d[same] > 0].mean() + push.sum() / (push > 0).sum()
    torch.testing.assert_close(loss(embeddings, labels), expected)


def test_saved_model_keeps_its_normalization(tmp_path: Path) -> None:
    words = ["backbone=resnet20", "backbone.weights=random", "pooling=gap", "dim=4", "image.resize=32", "image.crop=32"]
    with pytest.warns(UserWarning, match="random weights"):
        embedder = Embedder.create(load_config(None, [*words, "normalize=ball"]))
    with torch.no_grad():
        embedder.head.projection.weight *= 0.01
    embedder.save_pretrained(tmp_path)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    raw = embedder.encode(images, normalize=False)
    assert (np.linalg.norm(raw, axis=1) < 1).all()
    np.testing.assert_allclose(Embedder.from_pretrained(tmp_path).encode(images), raw, rtol=1e-5)
