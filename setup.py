"""Builds the core. What is compiled, and with which flags, is told by core/toolchain.py."""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = Path(__file__).resolve().parent / "core"
sys.path.insert(0, str(CORE))
import toolchain  # noqa: E402


class BuildCore(build_ext):
    """Compiles each kernel source once per instruction set, then links everything into `pyedge._core`."""

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        includes = [pybind11.get_include(), sysconfig.get_path("include")]
        objects = toolchain.compile_all(CORE, Path(self.build_temp), bindings=True, includes=includes)
        ext.extra_objects = [str(o) for o in objects]
        super().build_extension(ext)


setup(
    ext_modules=[Extension("pyedge._core", sources=[], language="c++", libraries=["m", "pthread"])],
    cmdclass={"build_ext": BuildCore},
)
