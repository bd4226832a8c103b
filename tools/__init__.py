"""Tools that turn model files into other model files, and measure them; installed as `pyedge.tools`.

They import the `gguf` package and the compiled core, never the engine or what is above it.
"""
