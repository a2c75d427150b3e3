"""Run the benchmarks that are named, or all of them."""

import importlib
import pkgutil
import sys

import tests.benchmarks

NAMES = sorted(
    found.name for found in pkgutil.iter_modules(tests.benchmarks.__path__) if not found.name.startswith("_")
)

for name in sys.argv[1:] or NAMES:
    if name not in NAMES:
        sys.exit(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    print(f"\n== {name}", flush=True)
    importlib.import_module(f"tests.benchmarks.{name}").main()
