"""The type checker that pytest runs the packages under: beartype, with ints accepted where floats are expected."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
