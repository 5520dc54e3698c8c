#!/usr/bin/env python3
"""Speed beside a peer, paired: on each file the two engines run in turn, A B A B .., and a round's ratio is ours over the peer's.

  cargo bench --bench decode --bench prefill --no-run
  scripts/paired-bench.py [--ours target/release/deps] [--peer llama|ik] [--rounds 3] FILE ...

Machines drift, so the ratio of a round means more than a speed; the table has the median of each. Prompts are 512 tokens, 32 tokens are generated
a stream, both engines use the same file and as many threads. `share` is the bytes that a window must read
(weights, each expert once; states, keys, values) over the time, over the memory's measured speed. The peer is scripts/peer-llama.py's; its numbers include that script's call, about 20 us a window.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys


def run(command: list[str]) -> dict:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def program(folder: str, name: str) -> str:
    """The newest of the programs that cargo has built under this name."""
    found = [path for path in pathlib.Path(folder).glob(f"{name}-*") if not path.suffix]
    return str(max(found, key=lambda path: path.stat().st_mtime))


def ours(args: argparse.Namespace, file: str) -> dict:
    common = [file, "--backend", "cpu", "--json", "--reps", "3", "--threads", str(args.threads)]
    read = run([program(args.ours, "prefill"), *common, "--prompt", "512"])
    report = run([program(args.ours, "decode"), *common, "--tokens", "32", "--streams", args.streams])
    rows = {"prefill": (read["prefill"][0]["tokens_s"], None)}
    for row in report["decode"]:
        rows[f"decode {row['streams']}"] = (row["tokens_s"], row["limit_share"])
    return rows | {"bandwidth": (report["limits"]["memory_gb_s"], None)}


def peer(args: argparse.Namespace, file: str) -> dict:
    script = str(pathlib.Path(__file__).with_name("peer-llama.py"))
    report = run([sys.executable, script, "bench", file, "--peer", args.peer, "-p", "512", "-n", "32", "-s", args.streams, "-r", "2", "-t", str(args.threads)])
    return {row["test"] if row["test"] == "prefill" else f"decode {row['streams']}": row["tok_s"] for row in report["results"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default="target/release/deps", help="folder of the built benches")
    parser.add_argument("--peer", choices=["llama", "ik"], default="llama")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,4,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    print("| file | test | ours tok/s | peer tok/s | ratio (rounds) | share of bandwidth |\n| --- | --- | --- | --- | --- | --- |")
    for file in args.files:
        rounds = [(ours(args, file), peer(args, file)) for _ in range(args.rounds)]
        for test in rounds[0][1]:
            mine, theirs = [a[test][0] for a, _ in rounds], [b[test] for _, b in rounds]
            ratios = [a / b for a, b in zip(mine, theirs)]
            shares = [a[test][1] for a, _ in rounds]
            share = "" if shares[0] is None else f"{100 * statistics.median(shares):.0f} % of {statistics.median(a['bandwidth'][0] for a, _ in rounds):.0f} GB/s"
            spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {pathlib.Path(file).name} | {test} | {statistics.median(mine):.0f} | {statistics.median(theirs):.0f} | **{statistics.median(ratios):.2f}** ({spread}) | {share} |", flush=True)


if __name__ == "__main__":
    main()
