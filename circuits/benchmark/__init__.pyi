"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from circuits.benchmark.grading import BenchmarkResult as BenchmarkResult
from circuits.benchmark.grading import run as run
from circuits.benchmark.grading import subject_builders as subject_builders
from circuits.benchmark.known_machine import KnownMachine as KnownMachine
from circuits.benchmark.known_machine import build as build
from circuits.benchmark.material import FULL as FULL
from circuits.benchmark.material import QUICK as QUICK
from circuits.benchmark.material import Material as Material
from circuits.benchmark.material import Workload as Workload
from circuits.benchmark.methods import METHODS as METHODS
from circuits.benchmark.methods import Method as Method
from circuits.benchmark.methods import register as register
from circuits.benchmark.question import Answer as Answer
from circuits.benchmark.question import Challenge as Challenge
from circuits.benchmark.question import register_questions as register_questions
