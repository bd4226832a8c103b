"""Tools that turn model files into other model files, and measure them; installed as `pyedge.tools`.

They import the compiled core and what is known of models and tokenizers (families' tables, rules for cutting words),
never the engine or what is above it.
"""
