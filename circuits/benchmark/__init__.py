"""Methods of interpretability, graded on machines whose insides are known."""

from circuits.benchmark.material import Effort, Material
from circuits.benchmark.method import METHODS, Answer, Method, register
from circuits.benchmark.subject import Subject, build, builders

__all__ = ["METHODS", "Answer", "Effort", "Material", "Method", "Subject", "build", "builders", "register"]
