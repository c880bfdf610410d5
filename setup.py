"""Builds the optional compiled kernel: without a compiler, or without its source, the package runs in pure Python."""

import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCE = "native/compiled.pyx"


def kernel() -> list[Extension]:
    """The kernel's extension, translated by Cython; nothing where it cannot be built."""
    if not Path(SOURCE).exists() or sys.byteorder != "little":
        return []
    from Cython.Build import cythonize  # A build requirement: not asked for where nothing is compiled.

    extension = Extension(
        "tiermq.kernel.compiled",
        [SOURCE],
        include_dirs=["native"],
        depends=sorted(str(path) for kind in ("h", "pxd", "pxi") for path in Path("native").glob(f"*.{kind}")),
        # Without debug information: it is six sevenths of the file.
        extra_compile_args=["-O3", "-fno-strict-aliasing", "-g0"],
        optional=True,
    )
    translated: list[Extension] = cythonize([extension], include_path=["native"], build_dir="build/native", quiet=True)
    for each in translated:
        each.optional = True  # Cython makes new objects and forgets this one.
    return translated


setup(ext_modules=kernel())
