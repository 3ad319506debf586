"""Search and metrics on a GPU equal those on the CPU, bit for bit in neighbors and distances."""

import pytest
import torch

from winnow.evaluation import evaluate_retrieval, nearest_neighbors

pytestmark = pytest.mark.gpu


def rows_and_labels(count, classes, width=24):
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(classes, (count,), generator=generator)
    rows = torch.randn(classes, width, generator=generator)[labels] + torch.randn(count, width, generator=generator)
    rows[count // 2 : count // 2 + 40] = rows[7]
    return torch.nn.functional.normalize(rows, dim=1), labels


@pytest.mark.parametrize(("count", "classes"), [(6000, 1200), (3000, 6), (90, 5)])
def test_evaluation_equals_the_cpu(count, classes):
    rows, labels = rows_and_labels(count, classes)
    here = evaluate_retrieval(rows, labels, ks=(1, 8, 100))
    there = evaluate_retrieval(rows.cuda(), labels.cuda(), ks=(1, 8, 100))
    assert torch.equal(here.neighbors, there.neighbors)
    assert torch.equal(here.distances, there.distances)
    for name, values in here.per_query.items():
        # The GPU sums over ranks in another order, so the last of 16 digits may differ.
        found = there.per_query[name].cpu()
        torch.testing.assert_close(found, values, rtol=1e-15, atol=1e-15, equal_nan=True, msg=name)


@pytest.mark.parametrize("chunk_bytes", [2**16, 2**26])
def test_gallery_search_equals_the_cpu(chunk_bytes):
    rows, _ = rows_and_labels(20000, 4000)
    here = nearest_neighbors(rows[:500], rows, 30)
    there = nearest_neighbors(rows[:500].cuda(), rows.cuda(), 30, chunk_bytes=chunk_bytes)
    assert torch.equal(here[1], there[1].cpu())
    assert torch.equal(here[0], there[0].cpu())
