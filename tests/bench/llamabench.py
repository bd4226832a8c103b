"""llama.cpp's own llama-bench as a peer of compare.py: prints its speeds as compare.py reads them.

    python tests/bench/llamabench.py LLAMA_BENCH MODEL.gguf [-p 512] [-n 64] [-d 0] [--threads 2]

LLAMA_BENCH is the program, of a native build: in llama.cpp's tree `cmake -B build -DGGML_NATIVE=ON` and
`cmake --build build --target llama-bench`. The better of flash attention on and off counts, for each of the two.
"""

from __future__ import annotations

import argparse
import json
import subprocess


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--gen", type=int, default=64)
    parser.add_argument("-d", "--depth", type=int, default=0, help="tokens before what is generated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1)
    a = parser.parse_args()
    command = [a.program, "-m", a.model, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.gen)]
    command += ["-d", str(a.depth), "-fa", "0,1", "-r", str(a.runs), "-o", "json"]
    tests = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    speeds = {
        field: max(test["avg_ts"] for test in tests if test[count])
        for field, count in (("prompt_tok_s", "n_prompt"), ("gen_tok_s", "n_gen"))
    }
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
