"""`pyedge serve` as a program: what it says, when it refuses to start, and how it ends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from program import ELSEWHERE, PROGRAM, environment, write_endless
from tinymodel import write_tiny_llama

from pyedge.cli import cli


class Process:
    """A server, and what it says on standard error."""

    def __init__(self, *args: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", "--port", "0", *args],
            env=environment(**env),
            cwd=ELSEWHERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        ready = threading.Event()

        def read() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                self.lines.append(line)
                ready.set()
            ready.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        assert ready.wait(30), "it says nothing"
        match = re.search(r"http://(.+):(\d+)$", self.lines[0].strip()) if self.lines else None
        assert match, self.lines
        self.port = int(match[2])

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def status(self, method: str, path: str, body: object = None, **headers: str) -> int:
        connection = self.connection()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def stream(self, **fields: object) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self.connection()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "the", "stream": True, **fields}))
        answer = connection.getresponse()
        assert answer.status == 200
        answer.readline()
        return connection, answer

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.code()

    def code(self) -> int:
        code = self.process.wait(20)
        self._reader.join()
        return code


@contextmanager
def running(*args: str, **env: str) -> Iterator[Process]:
    process = Process(*args, **env)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_endless(tmp_path_factory.mktemp("serve") / "endless.gguf"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_answers_under_way_are_finished(endless: str, number: int, code: int) -> None:
    """Then it ends, and nothing new is begun meanwhile."""
    with running(endless, "--kv-memory", "20MB") as server:
        assert server.lines[0].startswith("endless: http://127.0.0.1:")
        assert server.status("GET", "/health") == 200
        assert server.status("POST", "/v1/completions", {"prompt": "zebra", "max_tokens": 2}) == 200
        connection, answer = server.stream(max_tokens=600)
        server.process.send_signal(number)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # the port closes
            try:
                socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
            except OSError:
                break
        else:
            raise AssertionError("it still takes connections")
        assert answer.read().decode().endswith("data: [DONE]\n\n")
        connection.close()
        assert server.code() == code
        assert any("path=/v1/completions status=200" in line for line in server.lines)
        assert "zebra" not in "".join(server.lines)
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


def test_a_second_signal_ends_it_at_once(endless: str) -> None:
    """One that other machines may reach, with a key."""
    with running(endless, "--host", "0.0.0.0", "--kv-memory", "20MB", PYEDGE_API_KEY="k-1") as server:
        key = {"Authorization": "Bearer k-1"}
        assert server.status("GET", "/v1/models") == 401
        assert server.status("GET", "/v1/models", None, **key) == 200
        connection = server.connection()
        connection.request(
            "POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True, "max_tokens": 50_000}), key
        )
        answer = connection.getresponse()  # which holds the connection
        assert answer.readline().startswith(b"data: ")
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert server.process.poll() is None
        start = time.monotonic()
        assert server.end(signal.SIGINT) == 130
        assert time.monotonic() - start < 5
        assert "k-1" not in "".join(server.lines)


# ---- what does not start ---------------------------------------------------------------------------------------------


def serve(*args: str) -> Result:
    return CliRunner().invoke(cli, ["serve", *args], env={"PYEDGE_API_KEY": ""})


def one_line(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_port_in_use(endless: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = one_line(serve(endless, "--port", str(port)))
    assert f"127.0.0.1:{port}: another program listens there" in said


@pytest.mark.parametrize("host", ["203.0.113.9", "no-such-host.invalid"])
def test_a_wrong_address(endless: str, host: str) -> None:
    assert host in one_line(serve(endless, "--host", host, "--api-key", "k"))


def test_a_bad_file_opens_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_tiny_llama(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(socket.socket, "listen", lambda *args: pytest.fail("it listens"))
    assert "cut.gguf" in one_line(serve(str(tmp_path / "cut.gguf"), "--port", "0"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_other_machines_need_a_key(endless: str, host: str) -> None:
    result = serve(endless, "--host", host)
    assert result.exit_code == 2
    assert "--api-key" in result.stderr
    assert "--insecure" in result.stderr


def test_wrong_usage(endless: str) -> None:
    for args in (["--port", "99999"], ["--api-key", "a b"], ["--max-queue", "-1"], ["--kv-type", "q9"]):
        assert serve(endless, *args).exit_code == 2
    assert "--kv-memory" in one_line(serve(endless, "--kv-memory", "lots", "--port", "0"))
