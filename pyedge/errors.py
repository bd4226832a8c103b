"""The exceptions of pyedge that are meant for a person: one line that says where, what, and what to do.

Owns their names and nothing else, so that every layer can import it.
"""


class ModelError(Exception):
    """A model file, or what was asked of it, cannot be used. The text is one line: `WHERE: WHAT; what to do`."""


class NotBuiltError(ImportError):
    """The compiled core is not there: this is a checkout that nobody installed, or one that hides the installed
    package, because Python was started in its folder."""

    def __init__(self) -> None:
        super().__init__(
            'pyedge is not built here: run "pip install -e ." in this folder, '
            "or change to another folder if it is installed",
            name="pyedge._core",
        )


class DeadlineError(TimeoutError):
    """A request's time was over before its answer was."""


class BusyError(RuntimeError):
    """Others take up what this needs; the same may be asked for again in some seconds."""


class CancelledError(RuntimeError):
    """A step was broken off by `_core.Engine.cancel`. What it computed is lost; it can be repeated."""
