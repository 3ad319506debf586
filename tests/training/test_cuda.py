"""What only a GPU can show; skipped without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from winnow.functional import gsp
from winnow.losses import LOSSES, ZeroShotRegularisation
from winnow.training import RunFolder, load_config, run_training

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights"),
]


def values_and_gradients(device: str, dtype: torch.dtype, eps: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    prototypes = 0.2 * torch.randn(16, 32, generator=generator, dtype=torch.float64)
    features = 0.2 * torch.randn(8, 49, 32, generator=generator, dtype=torch.float64)
    features[:, :4] = prototypes[:4] + 1e-3 * torch.randn(8, 4, 32, generator=generator, dtype=torch.float64)
    f, w = (t.to(device, dtype).requires_grad_() for t in (features, prototypes))
    out = gsp(f, w, 0.3, eps)
    (out.pooled.square().sum() + out.attributes.square().sum()).backward()
    assert f.grad is not None
    assert w.grad is not None
    return [t.detach().double().cpu() for t in (*out, f.grad, w.grad)]


@pytest.mark.parametrize("eps", [0.5, 5.0, 20.0])
def test_gsp_in_float32_on_the_gpu_equals_float64_on_the_cpu(eps: float) -> None:
    exact = values_and_gradients("cpu", torch.float64, eps)
    for a, b in zip(values_and_gradients("cuda", torch.float32, eps), exact, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


def test_gsp_compiles_to_one_graph_on_the_gpu() -> None:
    f, w = torch.randn(4, 49, 32, device="cuda"), torch.randn(8, 32, device="cuda")
    compiled = torch.compile(gsp, fullgraph=True)
    for a, b in zip(compiled(f, w, 0.3, 5.0), gsp(f, w, 0.3, 5.0), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_agree_between_devices_also_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(24, 16), torch.arange(24) // 4
    loss = LOSSES.build({"name": name})
    expected = loss(x, labels)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = loss.cuda()(x.cuda(), labels.cuda())
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def test_zsr_runs_on_the_gpu() -> None:
    zsr = ZeroShotRegularisation(6, 16).cuda()
    z = torch.rand(24, 8, device="cuda", requires_grad=True)
    zsr(z, torch.arange(24, device="cuda") // 4).backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize("train", ["full", "frozen"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_training_on_the_gpu(make_folder: MakeFolder, tmp_path: Path, train: str, precision: str) -> None:
    words = [f"data={make_folder()}", *TINY, f"backbone.train={train}", f"train.precision={precision}", "zsr=0.1"]
    folder = RunFolder(tmp_path / "run")
    result = run_training(load_config(None, [*words, "train.device=cuda"]), folder)
    assert result["machine"]["gpu"]
    assert result["prototypes_ready"] or result["best_step"] == 0
    assert json.loads(folder.result_file.read_text())["metrics"]["test"]["MAP@R"] > 0
