"""Registers whose value is still on its way from the tensor core: any use is a named error."""

from __future__ import annotations

from typing import NoReturn

from .errors import RegistersInFlight, TensorMemoryNotReady

_OPERATORS = (
    "add sub mul truediv floordiv mod and or xor lshift rshift radd rsub rmul rand ror rxor rlshift rrshift "
    "neg pos abs invert int float bool index eq ne lt le gt ge len getitem iter array"
).split()


class _InFlight:
    """Stands for such a register."""

    def refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        self.refuse()

    def __array_ufunc__(self, *_args: object, **_kwargs: object) -> None:
        self.refuse()

    __hash__ = object.__hash__


for _name in _OPERATORS:
    setattr(_InFlight, f"__{_name}__", lambda self, *args, **kwargs: self.refuse())


class WgmmaRegister(_InFlight):
    """An accumulator that a wgmma still writes."""

    def refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise RegistersInFlight("an accumulator is read before wgmma.wait_group")


class TensorLoadRegister(_InFlight):
    """A register that a tcgen05.ld still writes."""

    def refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TensorMemoryNotReady("a register of tcgen05.ld is read before tcgen05.wait::ld")
