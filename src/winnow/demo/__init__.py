"""The comparison behind `winnow demo`: four poolings, the same settings, classes none has seen."""

from winnow.demo.run import Made, run_demo

__all__ = ["Made", "run_demo"]
