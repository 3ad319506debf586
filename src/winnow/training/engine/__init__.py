"""Execution of training steps: streams, CUDA graphs, processes, and precision."""
