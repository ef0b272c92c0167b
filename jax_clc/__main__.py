"""`python -m jax_clc`: the same as `jax-clc`."""

import sys

from jax_clc.cli import main

sys.exit(main())
