"""Builds the optional compiled kernel: without a compiler the package installs and runs in pure Python."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tiermq.kernel.compiled",
            ["native/compiled.py"],
            include_dirs=["native"],
            depends=["native/native.h", "native/native.pxd"],
            extra_compile_args=["-O3", "-fno-strict-aliasing"],
            optional=True,
        )
    ]
)
