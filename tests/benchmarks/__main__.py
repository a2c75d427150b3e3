"""Run the benchmark that is named, with the rows that are named after it, or all of them."""

import importlib
import pkgutil
import subprocess
import sys

import tests.benchmarks

NAMES = sorted(
    module_found.name
    for module_found in pkgutil.iter_modules(tests.benchmarks.__path__)
    if not module_found.name.startswith("_")
)

command, *rows = sys.argv[1:] or [""]
if command and command not in NAMES:
    sys.exit(f"no benchmark {command!r}; there are {', '.join(NAMES)}")
if command:
    importlib.import_module(f"tests.benchmarks.{command}").main(*rows)
for name in (
    NAMES if not command else []
):  # a process each: accelerate keeps the device that was taken first
    print(f"\n== {name}", flush=True)
    subprocess.run([sys.executable, "-m", "tests.benchmarks", name], check=True)
