"""Figures and tables of the papers, measured again: `winnow study NAME` runs one of them.

A study is one object and one line in `STUDIES`.
"""

from collections.abc import Mapping

from winnow.studies import (
    average_pooling,
    ccp_alternate,
    ccp_batch,
    ccp_cost,
    ccp_geometry,
    ccp_mnist,
    ccp_pool,
    ccp_samples,
    ccp_search,
    centres,
    collage,
    components,
    copies,
    cub_losses,
    cub_poolings,
    delta_cover,
    gsp_grids,
    iterations,
    learned,
    losses,
    m_eps,
    poolings,
    prototypes,
    reranking,
    screening,
    summary,
    tokens,
    tokens_vit,
    toy_map,
    zero_shot,
)
from winnow.studies.base import Findings, Task, write_findings
from winnow.studies.legacy import function_study
from winnow.studies.spec import (
    GROUPS,
    Claim,
    Evidence,
    GridStudy,
    Measurement,
    Scale,
    Study,
    StudyReport,
    StudyRequest,
    Variant,
)

_GSP, _ZSR, _CCP, _OTHER = GROUPS
_ALL: tuple[Study, ...] = (
    function_study("toy-map", toy_map.study, "hard vs. soft selection, low mu", "[Thesis], Fig. 5.2", _GSP),
    function_study("tokens", tokens.study, "GAP vs. GSP on bags of tokens", "[Thesis], Fig. 5.4", _GSP),
    gsp_grids.MU,
    function_study("m-eps", m_eps.study, "prototypes m and sharpness eps", "[Thesis], Fig. 5.10", _GSP),
    function_study("prototypes", prototypes.study, "number of prototypes", "[Thesis], Fig. 5.11", _GSP),
    function_study("iterations", iterations.study, "cost and error of k iterations", "[Thesis], Fig. 5.9", _GSP),
    function_study("poolings", poolings.study, "all poolings, emoji", "[Thesis], Fig. 5.12", _GSP),
    function_study("cub-poolings", cub_poolings.study, "all poolings, one CUB fold", "[Thesis], Fig. 5.12", _GSP),
    function_study("collage", collage.study, "all poolings, CIFAR Collage", "[Thesis], Fig. 5.5", _GSP),
    function_study("losses", losses.study, "all losses, GAP vs. GSP+ZSR", "[Thesis], Table 5.1", _GSP),
    function_study("learned", learned.study, "learned vs. fixed mu and eps", "", _GSP),
    function_study("tokens-vit", tokens_vit.study, "GSP on vision transformer tokens", "", _GSP),
    function_study("zero-shot", zero_shot.study, "prediction of unseen classes", "[Thesis], Fig. 5.6", _ZSR),
    function_study("components", components.study, "GSP and ZSR, alone and together", "[Thesis], Table 5.3", _ZSR),
    function_study("screening", screening.study, "main effects of m, mu, eps, ZSR", "[Thesis], Table 5.4", _ZSR),
    function_study("ccp-alternate", ccp_alternate.study, "new proxies vs. fixed proxies", "[Thesis], Fig. 3.7", _CCP),
    function_study("ccp-pool", ccp_pool.study, "proxies and candidates per class", "[Thesis], Fig. 3.6", _CCP),
    function_study("ccp-batch", ccp_batch.study, "batch size", "[Thesis], Fig. 3.8", _CCP),
    function_study("ccp-search", ccp_search.study, "proximal weight, proxies (Optuna)", "[Thesis], Fig. 3.5", _CCP),
    function_study("ccp-geometry", ccp_geometry.study, "t-SNE and covering radii", "[Thesis], Fig. 3.3", _CCP),
    function_study("ccp-mnist", ccp_mnist.study, "2-D embeddings on Fashion-MNIST", "[Thesis], Fig. 3.2", _CCP),
    function_study("ccp-samples", ccp_samples.study, "proxies vs. samples, 2-D", "[Thesis], section 3.3", _CCP),
    function_study("ccp-cost", ccp_cost.study, "time and memory per step", "[Thesis], section 3.3", _CCP),
    function_study("cub-losses", cub_losses.study, "losses, CCP, XBM on one CUB fold", "[Thesis], Table 3.1", _CCP),
    function_study("average-pooling", average_pooling.study, "GAP as a mixture of prototypes", "[Thesis], Fig. 4.2",
                   _OTHER),
    function_study("centres", centres.study, "center regularizers", "[Skewed]", _OTHER),
    function_study("reranking", reranking.study, "query expansion, k-reciprocal", "", _OTHER),
    function_study("copies", copies.study, "cost of resized image copies", "", _OTHER),
    function_study("delta-cover", delta_cover.study, "validation on few images", "", _OTHER),
    function_study("summary", summary.study, "published vs. measured gains", "[Thesis], Fig. 5.7", _OTHER),
)  # fmt: skip
STUDIES: Mapping[str, Study] = {study.name: study for study in _ALL}
"""All studies by name, in the order of lists."""

__all__ = [
    "GROUPS", "STUDIES", "Claim", "Evidence", "Findings", "GridStudy", "Measurement", "Scale", "Study", "StudyReport",
    "StudyRequest", "Task", "Variant", "write_findings",
]  # fmt: skip
