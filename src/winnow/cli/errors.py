"""Errors of the command line: one line each, printed by one process of a run."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from winnow.cli.help import label, metavar
from winnow.errors import UnknownComponentError, WinnowError, did_you_mean

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

UsageError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""What typer raises for words it cannot parse; older versions take it from click."""

HINTS = {
    "address": "Pass --host and --port.",
    "data": "Pass --data.",
    "dataset": "`winnow datasets get NAME --from FOLDER` copies or downloads a dataset.",
    "existing_run": "Pass --resume FOLDER, or another folder with --out.",
    "index": "`winnow index RUN DATA -o INDEX` builds one.",
    "missing_images": "`winnow datasets verify NAME --accept-missing` accepts their absence.",
    "port": "Pass --port; 0 takes a free one.",
    "search_folder": "Pass --out DIR.",
    "unfinished_run": "`winnow train --resume FOLDER` resumes it.",
}
"""What to do on the command line, by the hint of an error."""

OUT_OF_MEMORY = (
    "memory: not enough ({reason}). Lower the batch size, dim, or image.crop, set data.image_cache=none, or use a "
    "machine with more memory."
)

COMMAND_SYNONYMS = {
    "attention": "explain", "benchmark": "bench", "build": "index", "compare": "protocol", "create": "index",
    "dataset": "datasets", "download": "datasets", "encode": "embed", "eval": "evaluate", "experiment": "study",
    "features": "embed", "find": "search", "finetune": "train", "fit": "train", "heatmap": "explain", "keys": "config",
    "onnx": "export", "optimize": "tune", "optuna": "tune", "query": "search", "reproduce": "study",
    "retrieve": "search", "server": "serve", "settings": "config", "sweep": "train", "test": "evaluate",
    "torchscript": "export", "validate": "evaluate", "visualize": "explain", "web": "serve",
}  # fmt: skip
"""Words that other tools use for a command."""

OPTION_SYNONYMS = {
    "--checkpoint": "--resume", "--cuda": "--device", "--dataset": "--data", "--dir": "--out", "--gpu": "--device",
    "--grid": "--sweep", "--half": "--fp16", "--name": "--out", "--num-workers": "--jobs", "--output": "--out",
    "--output-dir": "--out", "--parallel": "--jobs", "--top-k": "-k", "--topk": "-k", "--workers": "--jobs",
}  # fmt: skip
"""Words that other tools use for an option."""


def report_error(error: WinnowError, err: Console) -> None:
    """Print an error as one line, if this is the process that reports it."""
    with reporting() as here:
        if here:
            print_error(" ".join(str(error).split()) + _advice(error), err)


def print_error(text: str, err: Console) -> None:
    """Print one line."""
    err.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is one of Python, NumPy, or torch about memory that cannot be allocated."""
    text = str(error)
    return isinstance(error, MemoryError) or any(
        phrase in text for phrase in ("out of memory", "can't allocate memory", "Storage size calculation overflowed")
    )


def memory_reason(error: Exception) -> str:
    """Return the first line of an error about memory, without the line of C++ source that torch names in front."""
    line = (str(error).strip().splitlines() or ["no details"])[0]
    return re.sub(r"^.*?(?=DefaultCPUAllocator)", "", line).rstrip(". ")


def _advice(error: WinnowError) -> str:
    """Return the advice for the command line, in addition to the error's own."""
    if isinstance(error.__context__, UnknownComponentError):
        return " On the command line, run that script with the same arguments: `python YOURS.py` instead of `winnow`."
    return f" {HINTS[error.hint]}" if error.hint is not None else ""


def unknown_command(path: str, name: str, known: Iterable[str]) -> str:
    """Return the message about a command that does not exist."""
    names = list(known)
    if name == "help":
        return f"{path}: unknown command 'help'. Run `{path} -h`, or `{path} COMMAND -h`."
    if (synonym := COMMAND_SYNONYMS.get(name)) in names:
        hint = f"; did you mean '{synonym}'?"
    else:
        hint = did_you_mean(name, names)
    return f"{path}: unknown command '{name}'{hint} Available: {', '.join(names)}."


def usage_message(error: Any) -> str:
    """Return the problem with the arguments of a command and its remedy, in one line."""
    context, parameter = error.ctx, getattr(error, "param", None)
    path = context.command_path if context is not None else "winnow"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return f"{path}: unknown option '{error.option_name}'" + _option_hint(error.option_name, context, path)
    if parameter is not None:
        name = metavar(parameter) if parameter.param_type_name == "argument" else label(parameter).split(", ")[-1]
        if kind == "MissingParameter":
            return f"{path}: missing {name}. `{path} -h` shows the arguments and options."
        return f"{name.split()[0]}: {_sentence(error.message)}"
    return f"{path}: {_sentence(error.format_message())} `{path} -h` shows the arguments and options."


def _option_hint(name: str, context: Any, path: str) -> str:
    """Return the nearest known option, or where such a setting is found."""
    parameters = context.command.params
    options = [one for one in parameters if one.param_type_name == "option" and not one.hidden]
    known = {spelled: label(one).split()[0].strip(",") for one in options for spelled in one.opts}
    for one in options:
        known |= {spelled: spelled for spelled in one.secondary_opts}
    synonym = OPTION_SYNONYMS.get(name)
    close = [synonym] if synonym in known else difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if close:
        return f"; did you mean '{close[0]}'?"
    if any("KEY=VALUE" in metavar(one) for one in parameters):
        word = name.lstrip("-").replace("-", "_")
        return f". Config keys are arguments KEY=VALUE without dashes; `winnow config {word}` searches them."
    return f". `{path} -h` lists the options."


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].lower() + text[1:] + ("" if text.endswith((".", "?")) else ".")


# Processes of torchrun. One of them reports to the user.

_REPORTED = "winnow/reported"
_PRECEDENCE = timedelta(seconds=5)  # of the first process, which has most of the context: often all fail alike


def rank() -> int:
    """Return the number of this process: 0 for the first one, and without torchrun."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def is_alone() -> bool:
    """Whether torchrun started no other process."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["WORLD_SIZE"] == "1"


@contextmanager
def reporting() -> Iterator[bool]:
    """Yield whether this process reports an error that several processes have.

    The other processes wait here until it is reported: torchrun stops all of them when the first one ends.
    """
    store = None if is_alone() else _store()
    if store is None:
        yield True
        return
    deadline = time.monotonic() + _PRECEDENCE.total_seconds()
    while rank() > 0 and not store.check([_REPORTED]) and time.monotonic() < deadline:
        time.sleep(0.1)
    yield not store.check([_REPORTED])
    store.set(_REPORTED, "")


def _store() -> Store | None:
    """Return the store of all processes, or None if it is gone.

    The store works after an error in one of the processes.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=_PRECEDENCE)
    except (RuntimeError, KeyError, ValueError):
        return None
    return PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
