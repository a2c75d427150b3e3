"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from circuits import benchmark as benchmark
from circuits import compare as compare
from circuits import q_learning as q_learning
from circuits import reachability as reachability
from circuits import weighted_majority as weighted_majority
from circuits.basis import Basis as Basis
from circuits.basis import Direction as Direction
from circuits.basis import PositionCode as PositionCode
from circuits.circuit import Circuit as Circuit
from circuits.circuit import Edge as Edge
from circuits.circuit import Location as Location
from circuits.compiler import compile_circuit as compile_circuit
from circuits.heads import Head as Head
from circuits.heads import Neuron as Neuron
from circuits.registry import CircuitRecord as CircuitRecord
from circuits.registry import build as build
from circuits.registry import differentiable as differentiable
from circuits.registry import from_origin as from_origin
from circuits.registry import load as load
from circuits.registry import models as models
from circuits.registry import register as register
from circuits.verification import verify as verify
from circuits.verification import verify_machine as verify_machine
