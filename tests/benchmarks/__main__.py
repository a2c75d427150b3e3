"""Run the benchmark that is named, with the rows that are named after it, or all of them."""

import importlib
import pkgutil
import sys

import tests.benchmarks

NAMES = sorted(
    found.name for found in pkgutil.iter_modules(tests.benchmarks.__path__) if not found.name.startswith("_")
)

asked, *rows = sys.argv[1:] or [""]
if asked and asked not in NAMES:
    sys.exit(f"no benchmark {asked!r}; there are {', '.join(NAMES)}")
for name in [asked] if asked else NAMES:
    print(f"\n== {name}", flush=True)
    importlib.import_module(f"tests.benchmarks.{name}").main(*rows)
