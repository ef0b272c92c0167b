"""The kernels that ship, as data. Each line is one cubin; each family of lines says why it is there."""

from kernels.variant import Variant
from kernels.variants_sm90 import HOPPER
from kernels.variants_sm100 import BLACKWELL
from kernels.variants_traced import TRACED

VARIANTS: list[Variant] = [*HOPPER, *BLACKWELL, *TRACED]
