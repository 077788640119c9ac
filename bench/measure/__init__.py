"""Equipment of the benchmarks: limits, memory, machine, child processes, sweeps, tables, plots."""
