"""Comparisons as integer arithmetic without branches, so that Python's integers and the DSL's 32-bit ones go through
the same lines. Differences of the arguments must be below 2**31."""


def positive_part(value):
    """max(value, 0): the shifted sign masks negative values out."""
    return value & ~(value >> 31)


def at_least(value, bound):
    """1 if value >= bound, else 0."""
    return 1 + (value - bound >> 31)


def less(value, bound):
    """1 if value < bound, else 0."""
    return -(value - bound >> 31)
