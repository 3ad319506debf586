"""Benchmarks against rivals in the same run: timing, memory, tables and the JSON they are saved as."""

from winnow.bench.memory import peak_memory
from winnow.bench.record import Bench, Row, bench_table, save_bench
from winnow.bench.timing import Timing, captured, measure, measure_all, measure_graph, pick_device

__all__ = [
    "Bench",
    "Row",
    "Timing",
    "bench_table",
    "captured",
    "measure",
    "measure_all",
    "measure_graph",
    "peak_memory",
    "pick_device",
    "save_bench",
]
