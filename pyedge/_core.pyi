"""The compiled core, as core/bindings shows it to Python. Failures are ValueError (wrong arguments), MemoryError,
ModelError (a file, or logits that are no numbers) or CancelledError, with the core's one-line message."""

import builtins
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

GgufValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]
_T = TypeVar("_T")

ABI_VERSION: int
PRECISIONS: tuple[str, ...]
KV_TYPES: tuple[str, ...]
MAX_THREADS: int

class TensorInfo:
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...  # "Q4_0"
    @property
    def shape(self) -> tuple[int, ...]: ...  # the file's order: columns first
    @property
    def n_bytes(self) -> int: ...
    @property
    def offset(self) -> int: ...  # in its file
    @property
    def file(self) -> int: ...  # its place in Gguf.files

class Gguf:
    """A read-only view of a GGUF file, or of a split model by its first part, validated on open."""

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Gguf: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def file_size(self) -> int: ...  # bytes, of all parts
    @property
    def files(self) -> list[str]: ...
    def keys(self) -> list[str]: ...
    @overload
    def get(self, key: str) -> GgufValue | None: ...
    @overload
    def get(self, key: str, default: _T) -> GgufValue | _T: ...
    def bytes(self, key: str) -> list[builtins.bytes]: ...
    def texts(self, key: str) -> tuple[list[str], dict[int, builtins.bytes]]: ...  # and those that are not UTF-8
    def packed(self, key: str) -> builtins.bytes: ...  # the value as in the file, its type in front
    def length(self, key: str) -> int: ...  # of an array; 1: a value that is none
    def __contains__(self, key: str) -> bool: ...
    @property
    def tensors(self) -> list[TensorInfo]: ...
    def tensor_index(self, name: str) -> int: ...  # -1: not there
    def read(self, name: str, first: int = 0, n: int | None = None) -> builtins.bytes: ...  # as in the file
    def dequantize(
        self, name: str, first: int = 0, n: int | None = None
    ) -> npt.NDArray[np.float32]: ...  # [n rows from first on, columns]
    def quantize(
        self,
        name: str,
        type: str,
        first: int = 0,
        n: int | None = None,
        *,
        importance: npt.NDArray[np.float32] | None = None,  # [columns], or [columns of each matrix]
        threads: int = 0,
    ) -> npt.NDArray[np.uint8]: ...  # [n rows from first on, bytes of a row]

def quantize(
    values: npt.NDArray[np.float32],  # [..., columns]
    type: str,
    *,
    importance: npt.NDArray[np.float32] | None = None,  # [columns]
    threads: int = 0,
) -> npt.NDArray[np.uint8]: ...  # [rows, bytes of a row]
def dequantize(
    rows: npt.NDArray[np.uint8],  # [rows, bytes of a row]
    type: str,
    *,
    threads: int = 0,
) -> npt.NDArray[np.float32]: ...  # [rows, columns]
def sentencepiece_model(
    pieces: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],  # as in `tokenizer.ggml.token_type`
    *,
    unigram: bool,
    byte_fallback: bool,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    charsmap: builtins.bytes = b"",
) -> builtins.bytes: ...

class OpInfo:
    @property
    def name(self) -> str: ...
    @property
    def min_inputs(self) -> int: ...
    @property
    def max_inputs(self) -> int: ...
    @property
    def min_outputs(self) -> int: ...
    @property
    def max_outputs(self) -> int: ...
    @property
    def weights(self) -> str: ...
    @property
    def parameters(self) -> str: ...

class FormatInfo:
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> int: ...
    @property
    def block_values(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def runs(self) -> bool: ...

def ops() -> list[OpInfo]: ...
def formats() -> list[FormatInfo]: ...
def machine() -> dict[str, int]: ...
def probe(threads: int = 0) -> dict[str, Any]: ...  # isa, threads, read_streams, read_gb_s, int8_gmac_s, f32_gmac_s
def isas() -> list[tuple[str, bool]]: ...
def active_isa() -> str: ...

class Model:
    """A validated plan with its weights packed. Independent of the file."""

    def __init__(
        self,
        gguf: Gguf,
        ops: Sequence[tuple[int, str, list[int], list[int], list[int], list[int | float]]],
        precision: str = "fast",
        threads: int = 0,
    ) -> None: ...
    def replace(
        self, op: int, slot: int, type: str, rows: npt.NDArray[np.uint8], *, threads: int = 0
    ) -> None: ...  # a matrix's values: the blocks of its whole tensor; no step may run
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_outputs(self) -> int: ...  # width of what a step makes: n_vocab, or of an embedding
    @property
    def n_layers(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def isa(self) -> str: ...

def page_bytes(model: Model, page_size: int, kv_type: str) -> int: ...

class Sampled:
    """A drawn token. Log-probabilities are the model's own, before any rule."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float | None: ...  # None when the sampler's n_logprobs is -1
    @property
    def top(self) -> list[tuple[int, float]]: ...  # most likely first

class Sampler:
    """One request's sampling rules and history."""

    def __init__(
        self,
        n_vocab: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repeat_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_last_n: int = 64,
        seed: int = 0,
        n_logprobs: int = -1,
        logit_bias: Mapping[int, float] | None = None,
        masked: bool = False,
    ) -> None: ...
    @property
    def n_vocab(self) -> int: ...
    def accept(self, tokens: Sequence[int], generated: bool = True) -> None: ...
    def sample(
        self, logits: npt.NDArray[np.float32], position: int, mask: bytes | npt.NDArray[np.uint32] | None = None
    ) -> Sampled: ...

class Engine:
    """KV pages, scratch memory, and one step at a time."""

    def __init__(
        self,
        model: Model,
        *,
        page_size: int,
        n_pages: int,
        max_tokens: int,
        max_pieces: int,
        max_rows: int,
        max_sequences: int,
        max_pages_per_sequence: int,
        kv_type: str,
        threads: int = 0,
    ) -> None: ...
    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None: ...
    def step(self, pieces: Sequence[tuple[int, int, int]], tokens: Sequence[int], rows: Sequence[int]) -> None: ...
    def logits(self, first: int = 0, n: int | None = None) -> npt.NDArray[np.float32]: ...  # [n, n_outputs]
    def sample(self, row: int, sampler: Sampler, position: int, mask: bytes | None = None) -> Sampled: ...
    def score(self, row: int, sampler: Sampler, tokens: Sequence[int]) -> list[Sampled]: ...
    def cancel(self) -> None: ...
    def tap(
        self, op: str | None, callback: Callable[[str, int, npt.NDArray[np.float32]], None] | None = None
    ) -> None: ...
    def profile(self, on: bool) -> None: ...
    def op_times(self) -> list[int]: ...  # nanoseconds, of each op of the plan
    def collect(self, on: bool) -> None: ...
    def collected(
        self, op: int, slot: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...  # sums of squares [n, columns], rows [n]
    def copy_page(self, source: int, target: int) -> None: ...
    def fill_page(self, page: int, value: float) -> None: ...
