"""The methods, one file for each or for a few that share their work; every file of this folder registers its own.

Keys of methods of edges and nodes say what was read: ``zero:joined`` looks at every corruption of the task through both
exits of a round, ``zero:prediction`` and ``zero:state`` at one exit, ``zero:single`` at the prediction of the task's
default corruption, as most studies do, and ``resample:another`` at both exits of a pair of unlike episodes.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
