"""Makes minilm.json: what sentence-transformers gives for some texts, in float32, at length 1.

python make_minilm.py FOLDER > minilm.json      # with sentence-transformers; FOLDER: the model from the wheel
"""

import base64
import json
import sys

import numpy as np
import sentence_transformers
import torch

LONG = (
    "The harbour master kept a ledger of every ship that came in, and of the weather it had met on the way. "
    "In spring the entries were short. By November they filled whole pages, since nobody wanted to go out again, "
    "and there was time to ask about the wind, the price of salt, and who had been seen in which port. "
)
TEXTS = [
    "A cat sleeps on the warm stone wall.",
    "On a heated wall of stone, a kitten is asleep.",
    "Central banks raised interest rates by a quarter of a percent.",
    "How do I reset the password of my router?",
    "naïve café, Übermut, Ångström, señor, FAÇADE",
    "東京の天気は晴れです。北京今天下雨。",
    "오늘은 서울에 비가 옵니다",
    "rocket 🚀 and family 👩‍👩‍👧‍👦, thumbs 👍🏽 up",
    "for (int i = 0; i < n; i++) { sum += a[i] * b[i]; }  // O(n)",
    "",
    " \t\n. ",
    "Привет, мир! Γειά σου Κόσμε. مرحبا",  # noqa: RUF001
    "unbelievablycompoundedwordthatnovocabularyhas 1234567890123 https://example.org/a?b=c&d=%20",
    LONG * 7,
]


def main() -> None:
    torch.set_num_threads(2)
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
    model.max_seq_length = 512  # what the positions allow; the model's own setting cuts at 256
    vectors = np.stack([model.encode(text, normalize_embeddings=True) for text in TEXTS])
    assert vectors.dtype == np.float32
    made_by = f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}"
    cases = [
        {
            "text": text,
            "token_ids": model.tokenizer(text, truncation=True, max_length=512, padding=False)["input_ids"],
            "vector": base64.b64encode(vector.tobytes()).decode(),
        }
        for text, vector in zip(TEXTS, vectors, strict=True)
    ]
    json.dump({"made_by": made_by, "cases": cases}, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
