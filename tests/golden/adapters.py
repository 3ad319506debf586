"""Calls into winnow by its names of today: the only file here to edit when a module, class or argument is renamed.

`find` takes the first place that exists, so a planned name can stand before the present one. The records themselves
hold the names of 0.1.0: parts and settings by the names in the registries, which stay valid as aliases.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# --- Names ------------------------------------------------------------------------------------------------------------


def find(*places: str) -> Any:
    """Return the first of some `module:name` that can be imported; `name` may have dots."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split(".") if name else ():
                found = getattr(found, part)
        except (ImportError, AttributeError):
            continue
        return found
    raise ImportError(f"none of {', '.join(places)} is there: name the new place in tests/golden/adapters.py")


def attribute(thing: Any, *names: str) -> Any:
    """Return the first attribute that an object has."""
    for name in names:
        if hasattr(thing, name):
            return getattr(thing, name)
    raise AttributeError(f"{type(thing).__name__} has none of {', '.join(names)}: edit tests/golden/adapters.py")


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function; of options under several names (`a__b=1`) the one goes that the function takes.

    An option that it takes under no name is an error, except where the value is None.
    """
    known = inspect.signature(function).parameters
    given = {}
    for names, value in options.items():
        name = next((one for one in names.split("__") if one in known), None)
        if name is not None:
            given[name] = value
        elif value is not None:
            raise TypeError(f"{function} takes none of {names}: edit tests/golden/adapters.py")
    return function(*args, **given)


LOSSES = find("winnow.losses:LOSSES")
MINERS = find("winnow.miners:MINERS", "winnow.mining:MINING")
REFERENCES = find("winnow.references:REFERENCES")
REGULARIZERS = find("winnow.regularizers:REGULARIZERS", "winnow.centres:CENTRES")
POOLINGS = find("winnow.pooling:POOLINGS")
NORMALIZERS = find("winnow.functional:NORMALIZERS", "winnow.functional:NORMALISE")
Pairs = find("winnow.losses:Pairs", "winnow.functional:Pairs", "winnow.functional.pairs:Pairs")
functional = find("winnow.functional")
evaluation = find("winnow.evaluation")
Embedder = find("winnow:Embedder")
Index = find("winnow:Index")
RunFolder = find("winnow.training:RunDir", "winnow.training.run_dir:RunDir", "winnow.training:RunFolder")
Monitor = find("winnow.training:Callback", "winnow.training:Monitor")


OLD_KEYS: Mapping[str, str] = {"centers": "centres"}
"""Names in state dicts that are renamed, new to old; files with the old ones must load."""


def old_key(key: str) -> str:
    """Return the name that a tensor of a state dict had in 0.1.0."""
    return ".".join(OLD_KEYS.get(part, part) for part in key.split("."))


# --- Parts ------------------------------------------------------------------------------------------------------------


def build(registry: Any, section: Mapping[str, Any], *, width: int, classes: int, batch: int, positions: int) -> Any:
    """Build a part by its section in the words of 0.1.0."""
    stated = {"normalised": False} if section["name"] == "ccp" else {}  # the default of 0.1.0
    return registry.build(
        {**stated, **section}, width=width, embedding_size=width, in_features=width, dim=width, num_classes=classes,
        batch=batch, batch_size=batch, positions=positions, num_positions=positions,
    )  # fmt: skip


def call_loss(
    loss: Any, queries: Tensor, labels: Tensor, references: Tensor | None = None,
    reference_labels: Tensor | None = None, exclude: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return a pair loss of queries against references."""
    if references is None and exclude is None and hasattr(loss, "proxies"):  # a proxy loss without proxies of its own
        within: Tensor = find("winnow.functional.pairs:compare_within_batch")(loss, queries, labels)
        return within
    return call(
        loss.forward, queries, labels, ref_emb__references=references, ref_labels__reference_labels=reference_labels,
        exclude=exclude,
    )  # fmt: skip


def set_of_loss(loss: Any, *, normalizer: str | None = None, miner: Any = None) -> None:
    """Set how a loss normalizes vectors, and its miner."""
    if normalizer is not None:
        name = "normalizer" if hasattr(loss, "normalizer") else "normalise"
        setattr(loss, name, NORMALIZERS[normalizer])
    if miner is not None:
        setattr(loss, "miner" if hasattr(loss, "miner") else "mining", miner)


def make_pairs(queries: Tensor, references: Tensor, labels: Tensor, reference_labels: Tensor) -> Any:
    """Return the pairs of two sets of unit vectors, as a miner gets them."""
    same = labels[:, None] == reference_labels[None, :]
    return Pairs(queries, references, same, ~same, labels, reference_labels)


def call_references(references: Any, loss: Any, queries: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a batch against a source of references."""
    return references(loss, queries, labels)


def seed_ccp(references: Any, pool: Tensor, classes: Tensor, *, first: bool) -> None:
    """Set CCP's proxies from a pool.

    0.1.0 selected first, of normalized embeddings, the one that rounding made the longest. Now the longest before
    normalization is first, so that the choice does not depend on rounding.
    """
    if first and getattr(references, "normalize_proxies", False):
        pool = NORMALIZERS["unit"](pool)
    call(
        references.seed, pool, classes, first__first_problem__is_first=first,
        normalize__normalise=NORMALIZERS["unit"],
    )  # fmt: skip


def class_centers(references: Any) -> Any:
    """Return the centers and labels of a source of references."""
    return attribute(references, "class_centers", "centres")()


def class_means(embeddings: Tensor, labels: Tensor) -> Any:
    """Return the mean of each class in a batch."""
    return find("winnow.regularizers:class_means", "winnow.centres:class_means")(embeddings, labels)


def call_regularizer(part: Any, centers: Tensor, labels: Tensor | None, counted: Tensor | None) -> Tensor:
    """Return the term of a center regularizer."""
    return part(centers, labels, counted)


def make_zsr(classes: int, width: int, ridge: float, scale: float) -> Any:
    """Return the zero-shot regularizer."""
    kind = find("winnow.losses:ZeroShotRegularizer", "winnow.losses:ZeroShotRegularisation")
    return call(kind, classes, width, ridge_alpha__ridge=ridge, logit_scale__scale=scale)


def make_pull(network: nn.Module, target: Mapping[str, Tensor], weight: float) -> Any:
    """Return the proximal penalty of a network, toward some weights."""
    pull = find("winnow.losses:ProximalPenalty", "winnow.losses:Pull")(network)
    attribute(pull, "set_target", "towards")(target)
    pull.weight.fill_(weight)
    return pull


def pool(pooling: Any, features: Tensor, mask: Tensor | None, guide: Tensor | None) -> dict[str, Tensor | None]:
    """Return what a pooling makes of features: the vector, the weights, the attributes."""
    made = call(pooling.forward, features, mask=mask, guide=guide, return_details__details=True)
    return {
        "vector": attribute(made, "vector", "pooled"), "weights": made.weights, "attributes": made.attributes,
    }  # fmt: skip


def is_guided(pooling: Any) -> bool:
    """Whether a pooling takes a guide."""
    return bool(attribute(pooling, "needs_guide", "guided"))


def takes(pooling: Any) -> str:
    """What a pooling takes: set, grid or fixed."""
    return str(attribute(pooling, "layout", "takes"))


def is_ready(pooling: Any) -> bool | None:
    """Whether the prototypes of a pooling are set; None for one without."""
    for name in ("prototypes_ready", "is_ready"):
        if hasattr(pooling, name):
            return bool(getattr(pooling, name))
    return None


def output_width(pooling: Any, width: int) -> int:
    """Return the size of what a pooling makes."""
    return int(attribute(pooling, "out_features", "output_size", "output_width")(width))


def analyze_average_pooling(features: Tensor, labels: Tensor, prototypes: int) -> Any:
    """Return what average pooling is in terms of prototypes."""
    names = ("analyze_average_pooling", "analyse_average_pooling")
    return attribute(functional, *names)(features, labels, prototypes)


def unfused_gsp(features: Tensor, prototypes: Tensor, mu: float, eps: float, mask: Tensor | None) -> Any:
    """Return GSP in plain operators: vector, weights, attributes."""
    function = find(
        "winnow.functional.closed_form:unfused_gsp", "winnow.functional.closed_form:gsp",
        "winnow.functional.unfused:unfused_gsp",
    )  # fmt: skip
    return function(features, prototypes, mu, eps, mask)


def gsp(features: Tensor, prototypes: Tensor, mu: Any, eps: Any, mask: Any = None, prior: Any = None) -> Any:
    """Return the vector, weights and attributes of GSP."""
    return tuple(functional.gsp(features, prototypes, mu, eps, mask, prior))


def greedy_k_center(points: Tensor, k: int, centers: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Return the picks of the greedy k-center."""
    function = find("winnow.functional:greedy_k_center", "winnow.functional:greedy_k_centre")
    return function(points, k, centers, mask)


# --- Evaluation -------------------------------------------------------------------------------------------------------


def search(queries: Tensor, references: Tensor, k: int, *, exclude_self: bool = False) -> Any:
    """Return the distances and places of the nearest."""
    function = find("winnow.evaluation:nearest_neighbors", "winnow.evaluation:search")
    return function(queries, references, k, exclude_self=exclude_self)


def expand_queries(queries: Tensor, references: Tensor, count: int, alpha: float, exclude_self: bool) -> Tensor:
    """Return queries moved toward their neighbors."""
    function = find("winnow.evaluation:expand_queries", "winnow.evaluation.reranking:expand_query")
    return call(
        function, queries, references, num_neighbors__neighbors__neighbours=count, alpha=alpha,
        exclude_self=exclude_self,
    )  # fmt: skip


def retrieval_arrays(result: Any) -> dict[str, Any]:
    """Return what a retrieval result holds."""
    return {
        "neighbors": attribute(result, "neighbors", "neighbours"),
        "distances": result.distances,
        "relevant": result.relevant,
        "left_out": attribute(result, "num_without_relevant", "left_out"),
        **{f"query {name}": values for name, values in result.per_query.items()},
    }


# --- Models -----------------------------------------------------------------------------------------------------------


def ensure_torchvision() -> None:
    """Make timm importable where torchvision does not fit torch."""
    find(
        "winnow.models.factory:ensure_torchvision", "winnow.models._torchvision:ensure_torchvision",
    )()  # fmt: skip


def make_network(name: str) -> nn.Module:
    """Return one of winnow's own networks, with random weights."""
    config = find("winnow.models:BackboneConfig")(name=name, weights="random")
    return find("winnow.models:build_backbone")(config, load_weights=False)


# --- Configs ----------------------------------------------------------------------------------------------------------


FIRST_VALUES = ("zsr.logit_scale=9.5",)
"""Settings whose default has changed, with the value of 0.1.0. Recorded configs name it; words alone do not."""
FIRST_VALUES_OF = {
    "backbone.train=full": ("train.average=0",),
    "references=ccp": ("references.normalize_proxies=false", "references.lr_multiplier=1"),
}
"""The same for runs with a setting.

The average of fine-tuned weights is validated by default now, and CCP's proxies, which hardly moved, are trained.
"""


def load_config(file: str | None, words: Sequence[str] = ()) -> Any:
    """Return a config from a file or from words of 0.1.0."""
    of_words = [value for word, values in FIRST_VALUES_OF.items() if word in words for value in values]
    return find("winnow.training:load_config")(file, [*(FIRST_VALUES if file is None else ()), *words, *of_words])


def make_config(tree: Mapping[str, Any]) -> Any:
    """Return a config from a tree in the words of 0.1.0."""
    return find("winnow.training.config:read_recorded", "winnow.training.config:make_config")(tree)


def dump(config: Any) -> dict[str, Any]:
    """Return all settings of a config as plain values."""
    return config.model_dump(mode="json")


def dump_numbers(config: Any) -> dict[str, Any]:
    """Return all settings that can change a number.

    The storage of features, whose default has changed, does not, nor do curves of test metrics, nor the other settings
    of a term without weight.
    """
    settings = dump(config)
    del settings["data"]["feature_cache"], settings["train"]["test_curve"]
    for name in ("zsr", "libc"):
        if not settings[name]["weight"]:
            settings[name] = {"weight": 0}
    return settings


def protocol_names() -> list[tuple[str, int]]:
    """Return every protocol with the chapter that has it."""
    return [("fair", 5), ("fair", 3), ("conventional", 5), ("conventional", 3), ("tuning", 5), ("ablation", 3)]


def protocol_task(
    protocol: str, chapter: int, target: str, methods: Sequence[str], folder: Path, *, backbone: str = "resnet50",
    once: bool = False, words: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Return the request for runs of a protocol; `once` leaves one run of each method."""
    kind = find("winnow.protocols:find_protocol")(protocol, chapter)
    if once:
        kind = kind.model_copy(update={"runs": 1, "folds": 1})
    dataset, network = find("winnow.protocols:find_dataset")(target), find("winnow.protocols:find_backbone")(backbone)
    request = find("winnow.protocols:ProtocolRequest")
    return request(
        kind, dataset, [present_method(one) for one in methods], folder, network, overrides=[*FIRST_VALUES, *words]
    )


def protocol_runs(task: Any) -> list[tuple[str, str, Any]]:
    """Return the method, the folder (relative) and the config of every run of a request."""
    return [
        (first_method(run.method), first_method(run_path(run.planned).relative_to(task.folder).as_posix()),
         run.planned.config)
        for run in task.plan()
    ]  # fmt: skip


def present_method(text: str) -> str:
    """Return a method of 0.1.0 by the name of what it trained; the other renamed ones are still read."""
    return re.sub(r"\+(ccp(?:-s)?)(?=$|[+,])", lambda match: f"+{RENAMED_ADDITIONS[match[1]]}", text)


def first_method(text: str) -> str:
    """Return a text with the methods that it names under their names of 0.1.0."""
    for first, present in RENAMED_ADDITIONS.items():
        text = re.sub(rf"\+{present}(?=$|[+,/])", f"+{first}", text)
    return text


LATE = "last third "
"""Start of the metrics of whole curves."""


def first_value(name: str, value: Any) -> Any:
    """Return a value of a row or a paired difference as 0.1.0 wrote it."""
    if name == "cells":
        return [cell for cell in value if not cell["metric"].startswith(LATE)]
    return first_method(value) if name in ("method", "against") else value


def first_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of a protocol with the keys and the methods of 0.1.0.

    Budgets and numbers of whole curves are newer: they stand next to the numbers of 0.1.0 and do not change them.
    """
    first = {key: value for key, value in table.items() if key not in ("note", "budget")} | {"about": ""}
    protocol = table["protocol"]
    first["protocol"] = {**protocol, "about": FIRST_TEXTS.get(protocol["name"], protocol["about"])}
    for key in ("rows", "pairs"):
        first[key] = [
            {name: first_value(name, value) for name, value in one.items() if name != "trained_steps"}
            for one in table[key]
            if not one.get("metric", "").startswith(LATE)
        ]
    return first


def run_path(planned: Any) -> Path:
    """Return the folder of a planned run."""
    return attribute(planned, "run_dir", "folder").path


def method_names() -> tuple[list[str], list[str], list[str]]:
    """Return the methods of the tables, what can be added, and the losses."""
    protocols = find("winnow.protocols")
    first = {present: first for first, present in RENAMED_ADDITIONS.items()}
    rows = [first_method(name) for name in protocols.PUBLISHED_METHODS]
    return rows, [first.get(name, name) for name in protocols.ADDITIONS], list(protocols.losses())


def study_runs(name: str, small: bool, folder: Path) -> list[tuple[str, tuple[int, ...], str, Any]] | None:
    """Return name, seeds, folder of the first run and config of every variant of a study; None for no grid."""
    studies = find("winnow.studies:STUDIES")
    study = studies.get(RENAMED_STUDIES.get(name, name)) or studies.get(name)
    if not hasattr(study, "variants"):
        return None
    # 0.1.0 planned the one run of `average-pooling` at both sizes, and trained it at the full one.
    scale = study.scales["quick" if small and name != "average-pooling" else "full"]
    if name == "collage":  # recorded with weights below `runs`, without the folder of the images
        folder = Path("runs")
        nothing = find("winnow.training.overrides:Overrides")()
        scale = replace(scale, needs=replace(scale.needs, prepare=lambda request: nothing))
    request = find("winnow.studies:StudyRequest")(scale, runs=folder, train=False)
    study = study.located(request) if hasattr(study, "located") else study
    plan = find("winnow.studies.runner:plan_grid")(study, request)
    first = [(variant, run) for variant, seed, run in plan if seed == scale.seeds[0]]
    return [(variant.name, scale.seeds, run_path(run).name, run.config) for variant, run in first]


def study_names() -> list[str]:
    """Return all studies, by the names of 0.1.0."""
    first_names = {new: old for old, new in RENAMED_STUDIES.items()}
    return [first_names.get(name, name) for name in find("winnow.studies:STUDIES")]


RENAMED_ADDITIONS = {
    "gsp": "gsp-zsr", "gsp-alone": "gsp-only", "ccp": "ccp-literal", "ccp-s": "ccp-s-literal",
}  # fmt: skip
"""First names of what protocols add to losses and their present ones.

`ccp` trains proxies that move now; what 0.1.0 trained under this name is `ccp-literal`.
"""
FIRST_TEXTS = {
    "ablation": "one model on two thirds of the training classes, judged on the last third; the mean of three",
}
"""Descriptions of protocols in 0.1.0, which tables hold."""
RENAMED_STUDIES = {"centres": "centers"}
"""First names of studies and their present ones."""


# --- Runs -------------------------------------------------------------------------------------------------------------


def train(config: Any, folder: Path, *, monitor: Any = None, resume: bool = False) -> dict[str, Any]:
    """Train a run in a folder; return what `result.json` holds."""
    run = find("winnow.training:train", "winnow.training:run_training", "winnow.training.run:run_training")
    call(run, config, RunFolder(folder), callback__monitor=monitor, resume=resume)
    result = read_result(folder)
    assert result is not None, "the run is finished"
    return result


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the result of a run as a dictionary; None if the run is not finished."""
    result = RunFolder(folder).read_result()
    return result.to_dict() if hasattr(result, "to_dict") else result


class Killed(Monitor):  # type: ignore[misc, valid-type]
    """Ends a run at a step, as Ctrl-C does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, step: int) -> None:
        """Be told of a step; `on_step` calls it too."""
        if step == self.at:
            raise KeyboardInterrupt

    on_step = step


def plan_sweep(folder: Path, words: Sequence[str], each: Sequence[str]) -> list[Any]:
    """Write the plan of a sweep; return its runs."""
    plan_runs = find("winnow.training.sweep:plan_runs", "winnow.training.plan:plan_runs")
    write_plan = find("winnow.training.sweep:write_plan", "winnow.training.plan:write_plan")
    runs = plan_runs(folder, None, list(words), list(each))
    write_plan(folder, runs)
    return list(runs)


def read_sweep(folder: Path) -> list[Any]:
    """Return the runs of a plan."""
    return list(find("winnow.training.sweep:read_plan", "winnow.training.plan:read_plan")(folder))


def train_protocol(task: Any, monitor: Callable[[Any], Any]) -> None:
    """Train the runs of a protocol, each with a monitor of its own."""
    local_executor = find("winnow.protocols:local_executor")
    task.train(task.plan(), local_executor(jobs=1, callback=monitor))


def tune(folder: Path, words: Sequence[str], trials: int, killed: int | None = None) -> None:
    """Search for settings; a number of a trial kills the search in it."""
    parse_space = find("winnow.tuning:parse_space", "winnow.protocols.space:parse_space")
    kind = find("winnow.tuning:Search", "winnow.protocols.search:Search")
    space, plain = parse_space(list(words))
    search_ = kind(None, plain, space, folder)
    call(search_.run, trials, callback__monitor=lambda number: Killed(2) if number == killed else Monitor())


def run_command(*words: str) -> Any:
    """Run a `winnow` command in this process."""
    from typer.testing import CliRunner

    first = FIRST_VALUES if words[0] == "protocol" else ()
    return CliRunner().invoke(find("winnow.cli.main:app"), [*words, *first], catch_exceptions=False)


def first_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of a log with the keys of 0.1.0: without the loss of guessing of ZSR and the turn of proxies."""
    return {key: value for key, value in line.items() if key not in ("zsr/guess", "turned")}


def seed_everything(seed: int) -> None:
    """Fix what torch draws."""
    torch.manual_seed(seed)
