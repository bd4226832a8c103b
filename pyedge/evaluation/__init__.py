"""What a model makes of a text that it did not write: its perplexity, how near another model comes, and what goes into
its matrices (importance). The engine-driven part of the checkpoint tools; those of files are in pyedge.tools.
"""
