"""pyedge: a quantized language-model engine for the machine you own.

    from pyedge import LLM, SamplingParams

Owns the public names, each imported when it is first used: importing `pyedge` alone costs nothing, which keeps the
command line quick and lets a checkout without its compiled core say what to do.
"""

from pyedge.errors import ModelError, NotBuiltError

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would be nearly all of this module's cost
if TYPE_CHECKING:
    from pyedge.engine.grammar import Grammar
    from pyedge.engine.sampling_params import SamplingParams
    from pyedge.llm import LLM

    __version__: str

__all__ = ["LLM", "Grammar", "ModelError", "SamplingParams", "__version__"]

_HOMES = {"LLM": "pyedge.llm", "Grammar": "pyedge.engine.grammar", "SamplingParams": "pyedge.engine.sampling_params"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    value: object
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("pyedge")
        except PackageNotFoundError:
            value = "0+not.installed"
    elif name in _HOMES or name == "_core":  # `from pyedge import _core` comes here too, before Python's own look-up
        import logging

        logger = logging.getLogger("pyedge")
        if not logger.handlers:  # or Python would write warnings to the standard error of a program that set up no log
            logger.addHandler(logging.NullHandler())
        try:
            value = import_module("pyedge._core")
            if name in _HOMES:
                value = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as e:
            if e.name != "pyedge._core":
                raise
            raise NotBuiltError from None
    else:
        raise AttributeError(f"module 'pyedge' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
