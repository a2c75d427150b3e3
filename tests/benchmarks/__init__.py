"""Speed, measured: `make bench` runs every benchmark; `python -m tests.benchmarks NAME` one. Ratios, from one run."""
