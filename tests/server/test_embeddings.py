"""/v1/embeddings and /v1/rerank over a tiny model that pools."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from serving import Server, serving
from tinymodel import write_tiny_llama

TEXTS = ["the cat and the rest", "on", "12312"]


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = write_tiny_llama(
        tmp_path_factory.mktemp("embedding") / "vectors.gguf", keys={"llama.pooling_type": 3}, tied=True, context=256
    )
    with serving(path, kv_memory="4MB") as server:
        yield server
        assert server.service.places.taken == 0
        assert server.get("/health").status == 200


def post(server: Server, texts: Any, **fields: Any) -> Any:
    reply = server.post("/v1/embeddings", {"input": texts, "model": "vectors", **fields})
    assert reply.status == 200, reply.data
    return reply.json


def test_the_same_as_in_python(embedding: Server) -> None:
    wanted = embedding.llm.embed(TEXTS)
    answer = post(embedding, TEXTS)
    assert (answer["object"], answer["model"]) == ("list", "vectors")
    assert [d["index"] for d in answer["data"]] == [0, 1, 2]
    assert all(d["object"] == "embedding" for d in answer["data"])
    assert np.array_equal(np.array([d["embedding"] for d in answer["data"]], np.float32), wanted)
    n = sum(len(embedding.llm.tokenizer.encode(t)) for t in TEXTS)
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
    packed = post(embedding, TEXTS, encoding_format="base64", dimensions=64)
    rows = [np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in packed["data"]]
    assert np.array_equal(rows, wanted)


def test_forms_of_texts(embedding: Server) -> None:
    ids = embedding.llm.tokenizer.encode("the cat")
    one = post(embedding, "the cat")["data"]
    for texts in (["the cat"], ids, [ids]):
        assert post(embedding, texts)["data"] == one
    many = post(embedding, ["the cat"] * 40)["data"]
    assert [d["embedding"] for d in many] == [one[0]["embedding"]] * 40


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": [5.5]}, 400, "input[0]"),
        ({"input": [["a"]]}, 400, "input[0]"),
        ({"input": ["a", 5]}, 400, "input[1]"),
        ({"input": [-1]}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input[1]"),
        ({"input": [[1], []]}, 400, "input[1]"),
        ({"input": "ab " * 3000}, 400, "input"),
        ({"input": ["a"] * 3000}, 400, "input"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"input": "a", "dimensions": 32}, 422, "dimensions"),
    ],
)
def test_what_is_wrong(embedding: Server, body: dict[str, Any], status: int, param: str) -> None:
    reply = embedding.post("/v1/embeddings", body)
    assert (reply.status, reply.error["param"]) == (status, param), reply.data


def test_rerank(embedding: Server) -> None:
    query, documents = "the cat", ["12312", "the cat", {"text": "on the rest"}]
    answer = embedding.post("/v1/rerank", {"query": query, "documents": documents}).json
    vectors = embedding.llm.embed([query, "12312", "the cat", "on the rest"])
    scores = vectors[1:] @ vectors[0]
    assert [r["index"] for r in answer["results"]] == list(np.argsort(-scores))
    assert answer["results"][0]["document"] == {"text": "the cat"}
    assert abs(answer["results"][0]["relevance_score"] - 1) < 1e-5
    assert answer["usage"]["total_tokens"] > 0
    (best,) = embedding.post("/rerank", {"query": query, "documents": documents, "top_n": 1}).json["results"]
    assert best["index"] == 1
    for wrong in (
        {"query": query},
        {"documents": []},
        {"query": query, "documents": [5]},
        {"query": query, "documents": ["a"], "top_n": 0},
    ):
        assert embedding.post("/rerank", wrong).status == 400


def test_the_other_kind_of_model(embedding: Server, server: Server) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        reply = embedding.post(path, body)
        assert reply.status == 400
        assert "embeds texts" in reply.error["message"]
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/rerank", {"query": "a", "documents": ["b"]})):
        reply = server.post(path, body)
        assert reply.status == 400
        assert "embeds none" in reply.error["message"]
    assert "embeds texts" in embedding.get("/").data.decode()
    assert embedding.get("/metrics").status == 200
