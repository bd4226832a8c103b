"""While the model is loaded the server listens, and says so."""

from __future__ import annotations

import threading
from pathlib import Path

from serving import Server

from pyedge import LLM
from pyedge.server.app import create_app
from pyedge.server.listener import Listener, bind
from pyedge.server.service import Service
from pyedge.server.settings import Settings


def test_it_says_when_to_come_again(tiny_path: Path) -> None:
    settings = Settings(port=0, max_sequences=2)
    with bind(settings) as s:
        service = Service(settings, tiny_path)
        listener = Listener(create_app(service), s, settings, 4)
        thread = threading.Thread(target=listener.run)
        thread.start()
        server = Server(service, listener.port)
        chat = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
        for reply in (
            server.get("/health"),
            server.get("/v1/models"),
            server.post(*chat),
            server.post("/tokenize", {"prompt": "a"}),
        ):
            assert (reply.status, reply.error["code"]) == (503, "unavailable")
            assert int(reply.headers["retry-after"]) > 0
            assert "loaded" in reply.error["message"]
        assert server.get("/").status == 200
        assert server.get("/metrics").status == 200
        with LLM(tiny_path, max_sequences=2, threads=1) as llm:
            service.start(llm)
            assert server.get("/health").status == 200
            assert server.post(*chat).status == 200
            service.draining = True
            assert server.get("/health").status == 503
            assert server.post(*chat).status == 503
            assert server.get("/metrics").status == 200
            listener.stop(0)
            thread.join()
            service.close()
            listener.close()
