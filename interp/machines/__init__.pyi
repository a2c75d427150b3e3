"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from interp.machines.drawn_starts import starts as starts
from interp.machines.recurrent import RoundEncoder as RoundEncoder
from interp.machines.recurrent import agent as agent
from interp.machines.recurrent import cell as cell
from interp.machines.recurrent import depth as depth
from interp.machines.recurrent import loop as loop
from interp.machines.recurrent import read_agent as read_agent
from interp.machines.sequences import hrm as hrm
from interp.machines.sequences import mixture as mixture
from interp.machines.sequences import read_coconut as read_coconut
from interp.machines.sequences import read_codi as read_codi
from interp.machines.sequences import state_space as state_space
from interp.machines.sequences import thoughts as thoughts
