"""Checks of a loss's arguments, its settings, and zero embeddings, for every registered loss."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from winnow.errors import ConfigError
from winnow.functional import NORMALIZERS
from winnow.losses import LOSSES, ContrastiveLoss, MarginLoss, ProxyAnchorLoss, ProxyLoss, ZeroShotRegularizer
from winnow.miners import MINERS, SemiHardMiner

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
every_loss = pytest.mark.parametrize("name", list(LOSSES))


def vectors(count: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def make(name: str, **settings):
    """Build a loss that can be called without references: a proxy loss owns proxies of three classes."""
    part = LOSSES[name]
    return part(3, 4, **settings) if issubclass(part, ProxyLoss) else part(**settings)


# Arguments of a call, the error, and the argument that its message names first.
MISTAKES = {
    "a list": (([[0.0] * 4] * 6, LABELS), {}, TypeError, "embeddings: "),
    "a numpy array": ((np.zeros((6, 4)), LABELS), {}, TypeError, "embeddings: .*numpy.ndarray"),
    "a vector": ((vectors()[0], LABELS), {}, ValueError, "embeddings: "),
    "a 3-D tensor": ((vectors()[None], LABELS), {}, ValueError, r"embeddings: .*\(1, 6, 4\)"),
    "integer embeddings": ((vectors().long(), LABELS), {}, TypeError, "embeddings: .*int64"),
    "labels as a list": ((vectors(), LABELS.tolist()), {}, TypeError, "labels: "),
    "labels in a column": ((vectors(), LABELS[:, None]), {}, ValueError, r"labels: .*\(6, 1\)"),
    "labels of floats": ((vectors(), LABELS.float()), {}, TypeError, "labels: .*float32"),
    "too few labels": ((vectors(), LABELS[:4]), {}, ValueError, "labels: .*6.*4"),
    "labels elsewhere": ((vectors(), LABELS.to("meta")), {}, ValueError, "labels: .*cpu.*meta"),
    "references by place": ((vectors(), LABELS, vectors(), LABELS), {}, TypeError, "ref_emb="),
    "mined pairs by place": ((vectors(), LABELS, None), {}, TypeError, "miner"),
    "references without labels": ((vectors(), LABELS), {"ref_emb": vectors()}, ValueError, "ref_emb, ref_labels: "),
    "labels without references": ((vectors(), LABELS), {"ref_labels": LABELS}, ValueError, "ref_emb, ref_labels: "),
    "references of another width": (
        (vectors(), LABELS), {"ref_emb": vectors()[:, :3], "ref_labels": LABELS}, ValueError, "ref_emb: .*4.*3",
    ),
    "reference labels in a column": (
        (vectors(), LABELS), {"ref_emb": vectors(), "ref_labels": LABELS[:, None]}, ValueError, "ref_labels: ",
    ),
    "excluded pairs of floats": ((vectors(), LABELS), {"exclude": torch.zeros(6, 6)}, TypeError, "exclude: "),
    "excluded pairs of another shape": (
        (vectors(), LABELS),
        {"ref_emb": vectors(5), "ref_labels": LABELS[:5], "exclude": torch.zeros(6, 6).bool()},
        ValueError,
        r"exclude: .*\(6, 5\)",
    ),
}  # fmt: skip


@every_loss
@pytest.mark.parametrize("case", MISTAKES)
def test_wrong_arguments_raise_and_name_the_argument(name, case):
    arguments, keywords, error, message = MISTAKES[case]
    if "excluded" in case and "ref_emb" not in keywords and issubclass(LOSSES[name], ProxyLoss):
        keywords = {**keywords, "ref_emb": vectors(), "ref_labels": LABELS}
    with pytest.raises(error, match=message):
        make(name)(*arguments, **keywords)


@pytest.mark.parametrize("name", [name for name in LOSSES if not issubclass(LOSSES[name], ProxyLoss)])
def test_excluded_pairs_are_added_to_those_of_an_embedding_with_itself(name):
    loss, itself = make(name), torch.eye(6, dtype=torch.bool)
    exclude = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.7
    named = {"ref_emb": vectors(), "ref_labels": LABELS}
    torch.testing.assert_close(
        loss(vectors(), LABELS, exclude=exclude), loss(vectors(), LABELS, **named, exclude=exclude | itself)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c2", "proxy_anchor"])  # compared within the batch, and with own proxies
def test_checks_do_not_break_a_compiled_graph(name):
    torch._dynamo.reset()
    loss = make(name)
    compiled = torch.compile(copy.deepcopy(loss), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(vectors(), LABELS), loss(vectors(), LABELS))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("normalize", list(NORMALIZERS))
def test_a_zero_embedding_has_a_finite_gradient(name, dtype, normalize):
    """One zero vector among others, and a batch of zero vectors; also as references and proxies."""
    for rows in ([2], range(6)):
        embeddings = vectors()
        embeddings[list(rows)] = 0
        embeddings = embeddings.to(dtype).requires_grad_()
        loss = make(name, normalize=normalize)
        references = embeddings.detach().clone().requires_grad_()
        value = loss(embeddings, LABELS) + loss(embeddings, LABELS, ref_emb=references, ref_labels=LABELS)
        value.backward()
        assert value.isfinite()
        for tensor in (embeddings, references, *loss.parameters()):
            assert tensor.grad.isfinite().all(), (name, dtype, list(rows))


@every_loss
def test_repr_shows_the_settings_that_build_the_loss_again(name):
    loss = make(name, normalize="ball")
    text = repr(loss)
    assert text.startswith(type(loss).__name__)
    assert "normalize='ball'" in text
    again = eval(text, {type(loss).__name__: type(loss)})
    assert repr(again) == text
    for setting in LOSSES.parameters(name):
        assert f"{setting.name}=" in text


def test_repr_shows_the_miner():
    assert "(miner): SemiHardMiner(margin=0.3)" in repr(ContrastiveLoss(miner=SemiHardMiner(margin=0.3)))


@every_loss
def test_miner_and_normalize_are_no_settings(name):
    assert not {"miner", "normalize", "num_classes", "proxies_per_class"} & set(LOSSES.resolve(name).arguments())
    for setting in ("miner", "normalize"):
        with pytest.raises(ConfigError, match=setting):
            LOSSES.resolve({"name": name, setting: None})


@every_loss
@pytest.mark.parametrize("miner", list(MINERS))
def test_a_miner_of_the_constructor_is_one_set_later(name, miner):
    values = []
    for given in (True, False):
        torch.manual_seed(0)
        loss = make(name, miner=MINERS.build(miner)) if given else make(name)
        if not given:
            loss.miner = MINERS.build(miner)
        values.append(loss(vectors(), LABELS))
    assert torch.equal(*values)


def test_normalize_takes_a_name_a_function_or_nothing():
    embeddings = 3 * vectors()
    kept = ContrastiveLoss(normalize=None)(embeddings, LABELS)
    assert torch.equal(kept, ContrastiveLoss(normalize=lambda x: x)(embeddings, LABELS))
    assert not torch.equal(kept, ContrastiveLoss()(embeddings, LABELS))
    assert torch.equal(ContrastiveLoss(normalize="unit")(embeddings, LABELS), ContrastiveLoss()(embeddings, LABELS))
    with pytest.raises(ValueError, match=r"normalize: .*'sphere'"):
        ContrastiveLoss(normalize="sphere")


@every_loss
def test_old_names_of_settings_and_values_are_read(name):
    part = LOSSES[name]
    new = {setting.name: setting.default for setting in LOSSES.parameters(name)}
    for old, setting in getattr(part, "aliases", {}).items():
        assert setting in new
        assert old not in new
        values = {value: key for key, value in getattr(part, "value_aliases", {}).get(setting, {}).items()}
        written = {"name": name, old: values.get(new[setting], new[setting])}
        assert LOSSES.resolve(written).arguments() == new


@pytest.mark.parametrize("alias", ["contrastive", "cosine_contrastive", "multi_similarity", "npairs", "pa", "pnca"])
def test_long_names_are_written_as_the_short_ones(alias):
    assert LOSSES.resolve(alias).name in list(LOSSES)
    assert LOSSES.resolve(alias) == LOSSES.resolve(LOSSES.resolve(alias).name)


def test_a_margin_per_class_follows_from_the_number_of_classes():
    assert MarginLoss().beta.shape == ()
    assert MarginLoss(5).beta.shape == (5,)
    assert MarginLoss(num_classes=5, per_class=False).beta.shape == ()
    assert LOSSES.build("margin", num_classes=5).beta.shape == ()
    assert LOSSES.build({"name": "margin", "per_class": True}, num_classes=5).beta.shape == (5,)
    with pytest.raises(ValueError, match="num_classes"):
        MarginLoss(per_class=True)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 3, 3], [0, 0, 1, 1, -1, -1]])
def test_labels_outside_the_classes_raise(labels):
    labels = torch.tensor(labels)
    for loss in (*(make(name) for name in LOSSES if issubclass(LOSSES[name], ProxyLoss)), MarginLoss(3)):
        with pytest.raises(ValueError, match=r"labels: .*from 0 to 2"):
            loss(vectors(), labels)
    with pytest.raises(ValueError, match=r"labels: .*from 0 to 2"):
        ZeroShotRegularizer(3, 2)(vectors().softmax(dim=1), labels)


@every_loss
def test_losses_can_be_copied_and_pickled(name):
    loss = make(name, normalize=None, miner=SemiHardMiner())
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(twin(vectors(), LABELS), loss(vectors(), LABELS))


def test_a_loss_from_a_config_draws_no_random_numbers_and_has_the_state_keys_of_its_settings():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    keys = {name: list(LOSSES.build(name, num_classes=3, embedding_size=4).state_dict()) for name in LOSSES}
    assert torch.equal(torch.random.get_rng_state(), before)
    assert keys == {name: ["beta"] if name == "margin" else [] for name in LOSSES}
    assert list(ProxyAnchorLoss(3, 4).state_dict()) == ["proxies"]
