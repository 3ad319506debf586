"""Triton kernels and their launchers; no other package imports Triton."""
