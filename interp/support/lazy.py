"""Import objects by name on first use, and register where shipped tasks and circuits are found.

A task is quick to import although its layout needs torch. ``interp.load`` can build every handwired
model although ``interp`` may not import the package ``circuits``. Both store an object's name as
text and import it on first use.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from interp.support.errors import InputError, require

_MODULES_OF_KINDS: dict[str, str] = {}


def lazy(name: str) -> Callable[..., Any]:
    """Return a function that imports and calls the function called ``"module:name"``. The module is
    imported only at the first call.

    >>> lazy("math:sqrt")(4)
    2.0
    """
    return lambda *args, **kwargs: resolve_name(name)(*args, **kwargs)


def lazy_functions(module: str, *names: str) -> dict[str, Any]:
    """Return a dictionary: name -> function that imports and calls the function of this name in a
    module. The module is imported only at the first call of one of these functions.

    Args:
        module: the module of the functions.
        names: the names of the functions.
    """
    return {name: lazy(f"{module}:{name}") for name in names}


def lazy_registered(kind: str, name: str) -> Callable[..., Any]:
    """Return a function that imports and calls a function of the package registered for ``kind``.
    The package is imported only at the first call.

    It is for packages that the calling module may not import directly, such as those of training
    goals.

    Args:
        kind: a kind of object that was registered by :func:`register_modules`, such as "goals".
        name: module and name of the function within that package: ``"qlearning:goal"`` for the
            function ``goal`` of the package's module ``qlearning``.
    """
    return lambda *args, **kwargs: resolve_name(f"{_MODULES_OF_KINDS[kind]}.{name}")(
        *args, **kwargs
    )


def resolve_name(name: str) -> Any:
    """Import and return the object called ``"module:name"``; raise an InputError if it does not
    exist.
    """
    module, _, attribute = name.partition(":")
    words = [*module.split("."), attribute]
    is_name = all(word.isidentifier() for word in words)
    require(is_name, f"{name!r} names nothing; give 'module:name'")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):  # the module exists, but an import in it failed
            raise
        raise InputError(
            f"{name!r} names nothing: there is no module {error.name!r}; give 'module:name'"
        ) from error


def facade(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return functions with which a package imports its public names on first use.

    The public names are the ones that the package's ``__init__.pyi`` imports; type checkers read
    the same file. Subpackages are imported on first use, too.

    Returns:
        A tuple of three, which the package's ``__init__`` assigns to ``__getattr__``, ``__dir__``
        and ``__all__``.
    """
    path = sys.modules[package].__path__
    stub = Path(path[0], "__init__.pyi").read_text(encoding="utf-8")
    homes: dict[str, str] = {}  # public name -> module from which it is imported
    subpackages = [module.name for module in iter_modules(path) if module.ispkg]
    for home, line in re.findall(r"^from (\S+) import (.+)$", stub, re.MULTILINE):
        names = re.findall(r"(\w+) as", line)  # "from home import name as name"
        if home == package:
            subpackages += names
        else:
            homes.update(dict.fromkeys(names, home))
    public_names = sorted(homes)

    def get(name: str) -> Any:
        if name in homes:
            return resolve_name(f"{homes[name]}:{name}")
        if name in subpackages:
            return import_module(f"{package}.{name}")
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}; it has {', '.join(public_names)}"
        )

    def list_names() -> list[str]:
        return sorted({*homes, *subpackages})

    return get, list_names, public_names


def register_modules(**modules: str) -> None:
    """Register modules by the kind of object that they provide, such as ``tasks="interp.tasks"``.

    :func:`entry` later imports and returns the module of a kind. ``interp/__init__.py`` calls this
    function, so that packages can use a module without importing it by its name.

    Args:
        modules: kind -> name of the module.
    """
    _MODULES_OF_KINDS.update(modules)


def entry(kind: str) -> ModuleType:
    """Import and return the module that provides objects of a ``kind``, such as "tasks" or
    "circuits", as :func:`register_modules` registered it.
    """
    return import_module(_MODULES_OF_KINDS[kind])


class _Deferred(ModuleType):
    """A package with an ``__init__`` that has not run yet.

    Names that ``__init__`` would import from the package's modules are imported from there. Reading
    any other attribute runs ``__init__``.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["_homes"]:
            return getattr(self._run_init(), name)
        home = import_module(self.__dict__["_homes"][name], self.__name__)
        return self.__dict__.setdefault(name, getattr(home, name))

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets an imported module as an attribute of its package. If ``__init__``
        # imports an object of the same name, such as a function, the attribute is left for the object.
        hides_object = isinstance(value, ModuleType) and name in self.__dict__["_homes"]
        if not hides_object:
            super().__setattr__(name, value)
        if name == "model_bridge":  # opens models of Hugging Face, whose checks __init__ relaxes
            self._run_init()

    def __dir__(self) -> list[str]:
        return dir(self._run_init())

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)  # pickled by name

    def _run_init(self) -> ModuleType:
        self.__class__ = ModuleType  # type: ignore[assignment]  # from now on an ordinary module
        try:
            self.__loader__.exec_module(self)  # type: ignore[union-attr]
        except BaseException:
            self.__class__ = _Deferred
            raise
        return self


def defer_import(*packages: str) -> None:
    """Defer running the ``__init__`` module of a third-party package, and of its subpackages, until
    one of their attributes needs it. Do nothing if the package is already imported, or not
    installed.

    Other modules of a deferred package can be imported without running its ``__init__``. Names that
    ``__init__`` imports from these modules are attributes of the package all the same.

    Args:
        packages: a top-level package, followed by any of its subpackages.
    """
    if packages[0] in sys.modules or find_spec(packages[0]) is None:
        return
    for package in packages:
        spec: Any = find_spec(package)
        source = ast.parse(spec.loader.get_source(package))
        homes: dict[str, str] = {}  # name -> module, relative to the package, that defines it
        for statement in source.body:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                home = "." * statement.level + statement.module
                homes.update({alias.name: home for alias in statement.names if not alias.asname})
        # A module of which only the docstring and `homes` are known; `_Deferred` does the rest on
        # the first access of an attribute.
        module = sys.modules[package] = module_from_spec(spec)
        module.__dict__.update(_homes=homes, __doc__=ast.get_docstring(source, clean=False))
        module.__class__ = _Deferred
        parent, _, name = package.rpartition(".")
        if parent:
            setattr(sys.modules[parent], name, module)


_HOME = Path(__file__).resolve().parents[2]
_PACKAGES = ("circuits", "probes", "reports")
"""Packages installed beside ``interp``, under names that another distribution might also use."""


def warn_of_other_copies(home: Path = _HOME) -> list[str]:
    """Return a warning for each package of this project (such as ``circuits``) that an import would
    not find in ``home``. The list of warnings is usually empty.

    A reason can be another distribution that has a package of the same name.

    Args:
        home: the folder in which ``interp`` and the other packages are installed.
    """
    sentences = []
    for name in _PACKAGES:
        spec = PathFinder.find_spec(name)
        origin = None if spec is None else spec.origin
        folder = None if origin is None else Path(origin).resolve().parent
        if folder != home / name:
            where = f"leads to {folder}" if folder else "leads nowhere"
            sentences.append(
                f"`import {name}` {where}, not to the package {name!r} of latent-context-interp in {home}: another "
                "distribution or folder owns the name; install latent-context-interp in an environment of its own"
            )
    return sentences
