"""/tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from serving import Server

TEXT = "the <|im_end|> other 日本"
HELLO = [{"role": "user", "content": "the other"}]


def test_there_and_back(server: Server) -> None:
    tokenizer = server.llm.tokenizer
    answer = server.post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json
    assert answer["tokens"] == tokenizer.encode(TEXT, special=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == server.llm.max_model_len
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json == {"prompt": TEXT, "content": TEXT}
    assert server.post("/tokenize", {"prompt": TEXT, "parse_special": False}).json["tokens"] == tokenizer.encode(TEXT)


def test_as_others_spell_it(server: Server) -> None:
    answer = server.post("/tokenize", {"content": "the other", "with_pieces": True}).json
    assert [t["id"] for t in answer["tokens"]] == server.llm.tokenizer.encode("the other")
    assert "".join(t["piece"] for t in answer["tokens"]) == "the other"


def test_messages(server: Server) -> None:
    ids = server.llm.tokenizer.apply_chat_template(HELLO)
    assert server.post("/tokenize", {"messages": HELLO}).json["tokens"] == ids
    text = server.post("/apply-template", {"messages": HELLO}).json["prompt"]
    assert text == server.llm.tokenizer.render_chat_template(HELLO)
    without = server.post("/apply-template", {"messages": HELLO, "add_generation_prompt": False}).json["prompt"]
    assert text.startswith(without)
    assert text != without


def test_what_is_wrong(server: Server) -> None:
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "abc"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [1.5]}),
        ("/apply-template", {"messages": []}),
        ("/apply-template", {"messages": HELLO, "chat_template_kwargs": {"messages": []}}),
    ):
        reply = server.post(path, body)
        assert reply.status == 400, body
        assert reply.error["message"]
