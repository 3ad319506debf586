"""Names of networks from the files of timm equal those in its registry, and are known without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from winnow.errors import ConfigError, ModelError
from winnow.models import BackboneConfig, download, ensure_torchvision, timm_names
from winnow.models.factory import check_backbone, check_network
from winnow.models.timm_names import is_timm_network, list_timm_networks, read_names

ensure_torchvision()

import timm  # noqa: E402
from timm.models import _registry  # noqa: E402

FOLDER = Path(timm.__file__).parent / "models"
SOURCE = """
from ._registry import register_model, register_model_deprecations

# @register_model
def commented(): ...

@register_model
# 16 pixels
def first_16(pretrained: bool = False): ...

@register_model
@staticmethod
def second(
        pretrained=False): ...

register_model_deprecations(__name__, {
    # old: names
    'first' : 'first_16',
    "zeroth": None,
})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "_registry.py").write_text("def register_model(function): ...")
    (tmp_path / "one.py").write_text(SOURCE)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "two.py").write_text("from ._registry import register_model\n@register_model\ndef third(): 0")
    return tmp_path


def test_the_files_of_timm_declare_its_registry() -> None:
    names = read_names(FOLDER)
    assert names is not None
    own = {name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm.")}
    assert names.listed == own  # other tests register networks
    assert names.old == set(_registry.get_deprecated_models())


def test_all_forms_of_a_declaration_are_read(folder: Path) -> None:
    names = read_names(folder)
    assert names is not None
    assert names.listed == {"first_16", "second", "third"}
    assert names.old == {"first", "zeroth"}


@pytest.mark.parametrize(
    "line",
    ["for f in functions: register_model(f)", "@register_model\nasync def odd(): ...",
     "register_model_deprecations(__name__, {\n    **names,\n})", "register_model_deprecations(__name__, names)"],
)  # fmt: skip
def test_another_form_is_left_to_timm(folder: Path, line: str) -> None:
    (folder / "three.py").write_text(f"{line}\n")
    assert read_names(folder) is None


def test_a_folder_without_networks_is_left_to_timm(tmp_path: Path) -> None:
    assert read_names(tmp_path) is None
    assert read_names(tmp_path / "missing") is None


def test_without_readable_files_timm_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.setattr(timm_names, "read_names", lambda folder: None)
    assert is_timm_network("resnet18")
    assert not is_timm_network("resnet_18_of_mine")
    assert list_timm_networks() == set(timm.list_models())


def test_a_network_that_a_program_adds_to_timm_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_this_test(pretrained: bool = False) -> None: ...

    monkeypatch.setattr(_registry, "_model_entrypoints", dict(_registry._model_entrypoints))
    assert not is_timm_network("of_this_test")
    timm.models.register_model(of_this_test)
    assert is_timm_network("of_this_test")
    check_network("of_this_test")


SCRIPT = """
import sys
from winnow.errors import ConfigError
from winnow.models.factory import check_network

check_network("resnet18")
check_network("gluon_resnet18_v1b")  # an old name
try:
    check_network("dinov2")
except ConfigError as error:
    print(error)
print(*({"timm", "torchvision", "torch._dynamo"} & set(sys.modules)))
"""


def test_a_name_is_checked_without_slow_imports() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    error, modules = done.stdout.split("\n")[:2]
    assert "vit_small_patch14_dinov2" in error or "vit_base_patch14_dinov2" in error
    assert modules == ""


def test_a_tag_is_checked_by_timm() -> None:
    check_network("resnet18.a1_in1k")
    with pytest.raises(ConfigError, match="a1_in1k"):
        check_network("resnet18.a1_in1")


def test_missing_weights_are_known_before_images_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(download, "is_reachable", lambda address: False)
    monkeypatch.setattr(download, "was_downloaded", lambda config: False)
    with pytest.raises(ModelError, match=r"timm/resnet18\.a1_in1k .*state dict .* parameter names"):
        check_backbone(BackboneConfig(name="resnet18"))
    with pytest.raises(ModelError, match="does not exist"):
        check_backbone(BackboneConfig(name="resnet18", weights=str(tmp_path / "no.pt")))
    for name, weights in (("tf_efficientnet_lite0", "auto"), ("resnet18", "random"), ("resnet20", "random")):
        check_backbone(BackboneConfig(name=name, weights=weights))
    monkeypatch.setattr(download, "was_downloaded", lambda config: True)
    check_backbone(BackboneConfig(name="resnet18"))
