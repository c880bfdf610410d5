"""Builds the optional compiled kernel: without a compiler, or without its source, the package runs in pure Python."""

from pathlib import Path

from setuptools import Extension, setup

SOURCE = "native/compiled.py"
DEPENDS = sorted(str(path) for path in Path("native").glob("native.*"))

kernel = Extension(
    "tiermq.kernel.compiled",
    [SOURCE],
    include_dirs=["native"],
    depends=DEPENDS,
    extra_compile_args=["-O3", "-fno-strict-aliasing"],
    optional=True,
)

setup(ext_modules=[kernel] if Path(SOURCE).exists() else [])
