"""The one step that pyproject.toml cannot say: the compiled kernels are built before packages are collected.

The library needs no Python header, so that one wheel for each platform serves every Python version.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "native"))
import build as native

TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64.manylinux2014_aarch64",
}
"""What PENSTOCK_WHEEL_TARGET may name, and the platform tag of such a wheel."""

TARGET = os.environ.get("PENSTOCK_WHEEL_TARGET") or None


class BuildKernels(build_py):
    """Compile, then collect the package with the library in it."""

    def run(self) -> None:
        native.build(target=TARGET)
        super().run()


class PlatformWheel(bdist_wheel):
    """py3-none-<platform>."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", TARGETS[TARGET] if TARGET else platform


class WithLibrary(Distribution):
    """Not pure: the wheel has a platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=WithLibrary,
    cmdclass={"build_py": BuildKernels, "bdist_wheel": PlatformWheel},
    setup_requires=[] if TARGET is None and native.has_compiler() else [native.ZIG],
)
