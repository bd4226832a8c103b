"""Requests in, token events out: the scheduler, the page pool and the step loop. Python only, no numerics.

Nothing is imported here, so that `pyedge.engine.sampling_params` costs what it weighs and not the whole engine.
"""
