"""The documents' protocols: which runs they take, what trains them, and the tables and statistics they end in."""

from winnow.protocols.engines import on_ray, packed
from winnow.protocols.joined import join, joined_metrics
from winnow.protocols.kinds import BACKBONES, PROTOCOLS, Protocol, find_backbone, find_protocol
from winnow.protocols.methods import ADDITIONS, ROWS, losses, method_words
from winnow.protocols.runs import Task, Trial
from winnow.protocols.sets import SETS, ProtocolSet, find_set
from winnow.protocols.statistics import Spread, ensembles, mean_of_members, resampled_means, spread
from winnow.protocols.table import Table, make_table
from winnow.protocols.variants import Variant
from winnow.protocols.write import write_table

__all__ = [
    "ADDITIONS",
    "BACKBONES",
    "PROTOCOLS",
    "ROWS",
    "SETS",
    "Protocol",
    "ProtocolSet",
    "Spread",
    "Table",
    "Task",
    "Trial",
    "Variant",
    "ensembles",
    "find_backbone",
    "find_protocol",
    "find_set",
    "join",
    "joined_metrics",
    "losses",
    "make_table",
    "mean_of_members",
    "method_words",
    "on_ray",
    "packed",
    "resampled_means",
    "spread",
    "write_table",
]
