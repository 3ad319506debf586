"""Published evaluation protocols: methods, runs, statistics over models, and tables."""

from winnow.protocols.ensembles import concatenate, ensemble_metrics
from winnow.protocols.executors import local_executor, ray_executor
from winnow.protocols.methods import ADDITIONS, PUBLISHED_METHODS, MethodSpec, losses
from winnow.protocols.plan import ProtocolRequest, ProtocolRun
from winnow.protocols.render import write_table
from winnow.protocols.spec import (
    BACKBONES,
    DATASETS,
    PROTOCOLS,
    BackboneSpec,
    DatasetSpec,
    ProtocolSpec,
    find_backbone,
    find_dataset,
    find_protocol,
)
from winnow.protocols.statistics import bootstrap_estimate, list_ensembles, mean_of_members, resampled_means
from winnow.protocols.table import ProtocolTable, make_table, read_table

__all__ = [
    "ADDITIONS",
    "BACKBONES",
    "DATASETS",
    "PROTOCOLS",
    "PUBLISHED_METHODS",
    "BackboneSpec",
    "DatasetSpec",
    "MethodSpec",
    "ProtocolRequest",
    "ProtocolRun",
    "ProtocolSpec",
    "ProtocolTable",
    "bootstrap_estimate",
    "concatenate",
    "ensemble_metrics",
    "find_backbone",
    "find_dataset",
    "find_protocol",
    "list_ensembles",
    "local_executor",
    "losses",
    "make_table",
    "mean_of_members",
    "ray_executor",
    "read_table",
    "resampled_means",
    "write_table",
]
