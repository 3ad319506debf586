"""`python -m winnow` is `winnow`."""

from winnow.cli import run

run()
