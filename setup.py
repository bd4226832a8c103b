"""Builds the core. What is compiled, and with which flags, is told by core/toolchain.py."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

CORE = Path(__file__).resolve().parent / "core"
sys.path.insert(0, str(CORE))
import toolchain  # noqa: E402

if sys.platform == "win32":
    sys.exit("error: pyedge does not run on Windows yet; use Linux or macOS")
if sys.platform == "darwin":  # a universal Python would link both processors' halves; the core is compiled for this one
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")


class BuildPython(build_py):
    """Copies the packages into an empty folder: a module deleted since the last build must not be installed again."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildCore(build_ext):
    """Compiles each kernel source once per instruction set, then links everything into `pyedge._core`."""

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        includes = [pybind11.get_include(), sysconfig.get_path("include")]
        try:
            objects = toolchain.compile_all(CORE, Path(self.build_temp), bindings=True, includes=includes)
        except FileNotFoundError as e:
            raise CompileError(
                f"{e.filename}: there is no such compiler; install one for C and C++ (on Debian: apt-get install g++"
                " python3-dev), or name it in CC and CXX"
            ) from e
        except subprocess.CalledProcessError as e:
            raise CompileError("the core does not compile; the compiler says above why") from e
        ext.extra_objects = ext.depends = [str(o) for o in objects]  # a newer object links anew
        ext.depends = ext.extra_objects  # without this, a core that was linked once is never linked again
        super().build_extension(ext)


setup(
    ext_modules=[Extension("pyedge._core", sources=[], language="c++", libraries=["m", "pthread"])],
    cmdclass={"build_ext": BuildCore, "build_py": BuildPython},
)
