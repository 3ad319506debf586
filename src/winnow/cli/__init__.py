"""The command line: `winnow demo | train | evaluate | explain | config`."""

from winnow.cli.main import run

__all__ = ["run"]
