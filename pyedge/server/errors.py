"""What a client is told that asked for something it cannot have: OpenAI's error shape, and which status means what.

400 the request is wrong; 401 no key; 403 a page of another site asks; 404 no such model or path; 405 not with this
method; 413 the body is too long; 422 the request is right, but nothing here does what it asks; 503 not now, or the
model could not compute it.
"""

from __future__ import annotations

from typing import Any

MISTAKE = "the server made a mistake; its log has more"  # of 500


class ApiError(Exception):
    """Ends a request with a status and one sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after  # seconds

    @property
    def body(self) -> dict[str, Any]:
        return error_body(self.status, str(self), self.param, self.code)

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def unsupported(param: str, why: str) -> ApiError:
    """The field is OpenAI's, or another server's, and cannot be ignored: the answer would not be what was asked for."""
    return ApiError(422, f"{param}: {why}", param=param, code="unsupported_parameter")
