"""Benchmarks of winnow against baselines; `python -m benchmarks NAME` runs one."""
