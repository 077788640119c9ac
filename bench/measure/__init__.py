"""What benchmarks measure with: limits, memory, machine, child processes, tables, plots."""
