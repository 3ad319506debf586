"""The public API: `import winnow` is light, every public name loads, and commands load only what they need."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import winnow

PACKAGES = ["data", "evaluation", "functional", "index", "losses", "miners", "models", "pooling", "references",
            "regularizers", "training"]  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """Return the modules that a fresh Python has loaded after running some code."""
    program = f"{code}\nimport sys\nprint(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_winnow_loads_nothing_heavy():
    loaded = loaded_after("import winnow; dir(winnow)")
    assert {name for name in loaded if name.split(".")[0] == "winnow"} == {"winnow"}
    assert not loaded & {"torch", "numpy", "pydantic", "PIL"}


def test_every_public_name_loads_and_is_listed():
    for name in winnow.__all__:
        assert getattr(winnow, name) is not None
    assert set(dir(winnow)) == set(winnow.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        winnow.nothing_of_this_name  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_of_packages_exist(package):
    module = importlib.import_module(f"winnow.{package}")
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.slow
def test_searching_needs_no_training_code():
    loaded = loaded_after("import winnow.index, winnow.models, winnow.evaluation, winnow.cli.index")
    assert not {name for name in loaded if name.startswith(("winnow.training", "winnow.losses", "winnow.miners"))}


@pytest.mark.slow
def test_our_own_settings_use_present_names():
    code = (
        "from winnow.demo import METHODS\n"
        "from winnow.protocols import MethodSpec, find_backbone, find_dataset, find_protocol\n"
        "from winnow.registry import RENAMED_KEYS\n"
        "from winnow.training import load_config\n"
        "for method in METHODS:\n"
        "    method.config(seed=0, steps=1)\n"
        "for protocol in ('fair', 'conventional'):\n"
        "    for name in ('cub200', 'sop'):\n"
        "        for method in ('c1+xbm+gsp-zsr', 'c2+ccp', 'ms+gsp-zsr', 'softtriple', 'pnca', 'pa'):\n"
        "            chosen = find_dataset(name), find_protocol(protocol, 5), find_backbone('resnet50')\n"
        "            load_config(None, MethodSpec.parse(method).overrides(*chosen).to_args())\n"
        "assert not RENAMED_KEYS, RENAMED_KEYS\n"
    )
    loaded_after(code)
