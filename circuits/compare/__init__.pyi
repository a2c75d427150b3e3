"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from circuits.compare.algorithm import AlgorithmPart as AlgorithmPart
from circuits.compare.algorithm import FamilyScore as FamilyScore
from circuits.compare.algorithm import explain as explain
from circuits.compare.driver import Comparison as Comparison
from circuits.compare.driver import machines as machines
from circuits.compare.question import Budget as Budget
