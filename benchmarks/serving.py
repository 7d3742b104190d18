"""Answers of `fedmc serve` under load, on MovieLens 1M: 20 clients ask for 20 items each, again and again.

    FEDMC_DATA=FOLDER python benchmarks/serving.py [--seconds 30] [--clients 20] [--rank 20]

Trains a model, serves it, and replaces it by another one halfway. The clients are another process; each sends its next
request as soon as it has its answer. Prints requests per second, percentiles of the time of an answer, errors, and the
server's processor time for a request, which does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

FEDMC = [sys.executable, "-m", "fedmc"]
DATA = Path(os.environ.get("FEDMC_DATA", "data")) / "ml-1m"


def main() -> None:
    options = parsed()
    if options.ask:
        print(json.dumps(asyncio.run(load(options))))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, usual in {"seconds": 30.0, "clients": 20, "rank": 20, "port": 0}.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    parser.add_argument("--ask", help="be the clients of this server: TOKEN,USER,...", default="")
    return parser.parse_args()


def measure(folder: Path, options: argparse.Namespace) -> None:
    for run, rounds in (("run", 20), ("next", 10)):
        command = [*FEDMC, "train", str(DATA / "ratings.dat"), "--items", str(DATA / "movies.dat"), "--rank"]
        command += [str(options.rank), "--rounds", str(rounds), "--out", str(folder / run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = subprocess.Popen([*FEDMC, "serve", str(folder / "run"), "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        port = re.search(r":(\d+)/", server.stderr.readline()).group(1)
        report(folder, options, int(port), psutil.Process(server.pid))
    finally:
        server.terminate()
        print(f"server ended with {server.wait(30)}")


def report(folder: Path, options: argparse.Namespace, port: int, process: psutil.Process) -> None:
    token = (folder / "run" / "serve.token").read_text().strip()
    words = ["--port", str(port), "--seconds", str(options.seconds), "--clients", str(options.clients)]
    before = process.cpu_times()
    client = subprocess.Popen([sys.executable, __file__, "--ask", token, *words], stdout=subprocess.PIPE, text=True)
    time.sleep(options.seconds / 2)
    shutil.copy(folder / "next" / "model.npz", folder / "run" / "model.npz.part")
    os.replace(folder / "run" / "model.npz.part", folder / "run" / "model.npz")
    found = json.loads(client.communicate(timeout=options.seconds + 60)[0])
    after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    answers = found["answers"]
    print(f"{options.clients} clients, {options.seconds:g} s, rank {options.rank}, top 20, reload after the first half")
    print(f"answers        {answers:,} ({answers / options.seconds:,.0f} a second)")
    print(f"errors         {found['errors']}; statuses {found['statuses']}; models {len(found['models'])}")
    print("milliseconds   " + ", ".join(f"{name} {value:.1f}" for name, value in found["times"].items()))
    print(f"server         {1e3 * cpu / answers:.2f} ms of processor time a request, {cpu / options.seconds:.2f} cores")


async def load(options: argparse.Namespace) -> dict[str, object]:
    """Ask from all clients at once until the time is over."""
    rng = np.random.default_rng(0)
    times: list[float] = []
    statuses: Counter[str] = Counter()
    models: set[str] = set()
    errors: list[str] = []
    end = time.perf_counter() + options.seconds

    async def client(users: list[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
        for user in users:
            body = json.dumps({"user": user, "n": 20}).encode()
            head = f"POST /v1/recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {options.ask}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            began = time.perf_counter()
            if began > end:
                break
            writer.write(head.encode() + body)
            header = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", header)[1])
            answer = await reader.readexactly(length)
            times.append(time.perf_counter() - began)
            statuses[header.split(b" ", 2)[1].decode()] += 1
            models.add(answer[10:22].decode())
        writer.close()

    draws = rng.integers(1, 6041, (options.clients, 1_000_000 // options.clients)).tolist()
    for outcome in await asyncio.gather(*map(client, draws), return_exceptions=True):
        if outcome is not None:
            errors.append(repr(outcome))
    names = {"p50": 50, "p95": 95, "p99": 99, "p99.9": 99.9, "most": 100}
    shown = {name: 1e3 * float(np.percentile(times, share)) for name, share in names.items()}
    return {
        "answers": len(times), "times": shown, "statuses": statuses, "models": sorted(models), "errors": errors,
    }  # fmt: skip


if __name__ == "__main__":
    main()
