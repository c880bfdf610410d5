# The compiled kernel has the names and signatures of the pure one; `tests/kernel` compares them.
from tiermq.kernel.pure import *  # noqa: F403
