"""A Ray cluster: reached or refused in good time, and asked whether it has room for a run at all."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.errors import ConfigError

WAIT = 10.0
"""Seconds in which a cluster has to answer."""


def connect(ray: Any, address: str | None) -> None:
    """Connect to a running cluster, or start a local one.

    Args:
        ray: The module.
        address: Of the cluster; None for `$RAY_ADDRESS`, or else a local one.

    Raises:
        ConfigError: when nothing answers there.
    """
    place = address or os.environ.get("RAY_ADDRESS")
    # Ray itself tries for minutes to reach a machine that does not answer, and has no setting for how long.
    if place is not None and (match := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", place)):
        try:
            socket.create_connection((match[1], int(match[2])), timeout=WAIT).close()
        except (OSError, OverflowError) as error:
            raise _refused(place, error) from None
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, TimeoutError, ValueError) as error:
        if place is None:
            raise
        raise _refused(place, error) from None


def _refused(place: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"--address {place}: no Ray cluster answers there ({reason}); start one (`ray start --head`), or leave the "
        "address out (and RAY_ADDRESS) for a local one"
    )


def check_room(nodes: Sequence[Mapping[str, Any]], *, gpus: float, cpus: float) -> None:
    """Refuse a share that no node has, for which tasks would wait for ever.

    Args:
        nodes: As `ray.nodes()` tells of them.
        gpus: Share of a GPU for each run.
        cpus: Cores for each run.

    Raises:
        ConfigError: naming what there is.
    """
    there = [
        (float(node["Resources"].get("GPU", 0)), float(node["Resources"].get("CPU", 0)))
        for node in nodes
        if node["Alive"]
    ]
    if not any(has_gpus >= gpus and has_cpus >= cpus for has_gpus, has_cpus in there):
        told = ", ".join(f"{has_gpus:g} GPUs and {has_cpus:g} cores" for has_gpus, has_cpus in sorted(set(there)))
        raise ConfigError(
            f"--gpus {gpus:g}: no node of the cluster has that for a run, with {cpus:g} cores (nodes have "
            f"{told or 'nothing'}); give a smaller share, or 0 to train without a GPU"
        )
