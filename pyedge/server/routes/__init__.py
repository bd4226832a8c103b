"""The routes, a module for each group, found by their being here: each has a flask.Blueprint called `routes`."""

from __future__ import annotations

from typing import cast

from flask import current_app

from pyedge.server.service import Service


def service() -> Service:
    """Of the request that is being answered."""
    return cast(Service, current_app.extensions["pyedge"])
