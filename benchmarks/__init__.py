"""Benchmarks of winnow against baselines in the same process; run one with `python -m benchmarks NAME`."""
