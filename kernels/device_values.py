"""Small objects of device values that pass through the DSL's loops and branches."""

import cutlass


class DeviceValues:
    """Base of objects whose attributes live in registers while a kernel runs.

    The attributes named in `FIELDS` are DSL values, or objects of them; everything else is constant while tracing.
    """

    FIELDS: tuple[str, ...] = ()

    def __extract_mlir_values__(self):
        return [value for name in self.FIELDS for value in cutlass.extract_mlir_values(getattr(self, name))]

    def __new_from_mlir_values__(self, values):
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        taken = 0
        for name in self.FIELDS:
            field = getattr(self, name)
            count = len(cutlass.extract_mlir_values(field))
            setattr(copy, name, cutlass.new_from_mlir_values(field, values[taken : taken + count]))
            taken += count
        return copy

    def clone(self):
        """A copy whose changes this object does not see. A function that changes an argument of the caller's takes one:
        the caller may be a branch, whose values must not leak into its other branch."""
        return self.__new_from_mlir_values__(self.__extract_mlir_values__())
