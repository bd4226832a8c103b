"""The chat page that `pyedge serve` shows: templates and static files, no logic; installed as `pyedge.web`."""
