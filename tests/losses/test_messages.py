"""Error messages for habits of pytorch-metric-learning users: the remedy, at the line of the user."""

import warnings

import pytest
import torch

from winnow.losses import ContrastiveLoss, ProxyAnchorLoss, ReferenceLoss, TripletMarginLoss
from winnow.miners import HardPairMiner
from winnow.pooling import GSP
from winnow.references import CrossBatchMemory

EMBEDDINGS, LABELS = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) // 2


def test_miner_called_with_embeddings_names_the_argument_of_a_loss():
    with pytest.raises(TypeError, match="miner="):
        HardPairMiner()(EMBEDDINGS, LABELS)  # type: ignore[arg-type]


def test_memory_around_a_loss_names_reference_loss():
    with pytest.raises(TypeError, match="ReferenceLoss"):
        CrossBatchMemory(TripletMarginLoss(), 16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "criterion",
    [ProxyAnchorLoss(3, 16), ReferenceLoss(ContrastiveLoss(), CrossBatchMemory(16, 6, start_step=0, num_batches=1))],
    ids=["proxies", "memory"],
)
def test_embeddings_of_another_size_name_embedding_size(criterion):
    with pytest.raises(ValueError, match="embedding_size=8"):
        criterion(EMBEDDINGS, LABELS)


def test_warnings_name_the_line_of_the_caller():
    memory = ReferenceLoss(ContrastiveLoss(), CrossBatchMemory(8, 6, start_step=1000))
    gsp = GSP(4, num_prototypes=2, memory_size=8).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memory(EMBEDDINGS, LABELS)
        gsp(torch.randn(2, 4, 3, 3))
    assert [one.filename for one in caught] == [__file__, __file__]
