"""The command line `winnow`: parse arguments, call the library, print."""

from winnow.cli.main import run

__all__ = ["run"]
