"""Figures and tables of the papers, measured again: `winnow study NAME` runs one of them.

A study is one object and one line in `STUDIES`.
"""

from winnow.studies import (
    average_pooling,
    ccp_cost,
    ccp_geometry,
    ccp_grids,
    ccp_plane,
    ccp_samples,
    ccp_search,
    collage,
    copies,
    delta_cover,
    finetune_small,
    frozen_heads,
    gains,
    gsp_grids,
    iterations,
    localization,
    loss_grids,
    pooling_grids,
    reranking,
    summary,
    tokens,
    toy_map,
    zero_shot,
    zsr_forms,
)
from winnow.studies.scores import Scores
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
    toy_map.TOY_MAP,
    tokens.TOKENS,
    gsp_grids.MU,
    gsp_grids.M_EPS,
    gsp_grids.PROTOTYPES,
    iterations.ITERATIONS,
    localization.LOCALIZATION,
    pooling_grids.POOLINGS,
    pooling_grids.CUB_POOLING_STUDY,
    collage.COLLAGE,
    loss_grids.LOSS_STUDY,
    gsp_grids.LEARNED_STUDY,
    pooling_grids.TOKENS_VIT,
    zero_shot.ZERO_SHOT,
    zsr_forms.ZSR_FORMS,
    gsp_grids.COMPONENT_STUDY,
    gsp_grids.SCREENING,
    ccp_grids.CCP_ALTERNATE,
    ccp_grids.CCP_POOL,
    ccp_grids.CCP_BATCH,
    ccp_search.CCP_SEARCH,
    ccp_geometry.CCP_GEOMETRY,
    ccp_plane.CCP_PLANE,
    ccp_samples.CCP_SAMPLES,
    ccp_cost.CCP_COST,
    finetune_small.FINETUNE_SMALL,
    finetune_small.FINETUNE_CLASSES,
    loss_grids.CUB_LOSSES,
    average_pooling.AVERAGE_POOLING,
    loss_grids.CENTERS,
    frozen_heads.FROZEN_HEADS,
    reranking.RERANKING,
    copies.COPIES,
    delta_cover.DELTA_COVER,
    gains.GAINS,
    summary.SUMMARY,
)  # fmt: skip
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}
"""All studies by name, in the order of lists; a program may add its own."""

__all__ = [
    "GROUPS", "STUDIES", "Claim", "Evidence", "GridStudy", "Measurement", "Scale", "Scores", "Study",
    "StudyReport", "StudyRequest", "Variant",
]  # fmt: skip
