"""Examples that end the help of each command: what they do, and the command without the word `fedmc`.

A new command needs an entry here, or in `examples_federation`: tests/test_examples.py says which one is missing, and
parses them all.
"""

from __future__ import annotations

import click

from fedmc.cli.examples_federation import FEDERATION

Examples = tuple[tuple[str, str], ...]
TRAINING: dict[str, Examples] = {
    "train": (
        ("Ratings from a CSV file, over 20 simulated clients", "train ratings.csv --clients 20 --out run"),
        ("With a report that compares it with each client alone", "train ratings.csv --report --baselines --out run"),
        ("Parts of a table in object storage, with titles", "train s3://shop/ratings/ --items s3://shop/films.csv"),
        ("Purchases, clicks or plays", "train events.csv --feedback implicit --out shop"),
        ("Go on from an earlier run with new ratings", "train february.csv --from run --out next"),
    ),
    "tune": (
        ("Three ranks of the default model, on ratings that clients hold out", "tune ratings.csv --ranks 5,10,20"),
        ("Rank and weights of a model of events", "tune events.csv --feedback implicit"),
    ),
    "audit": (
        ("What a server would find out, with and without masks", "audit ratings.csv --privacy plain,secagg"),
        ("The same on synthetic ratings of a known size", "audit like:ml-1m --clients 100 --out audit"),
    ),
    "compare": (
        ("All methods, on your own ratings", "compare ratings.csv --clients 20 --rounds 30"),
        ("Some of them, on one split", "compare ratings.csv --methods fedmc-bayes,pooled,alone --seeds 1"),
        ("Events: against popularity and nearest items", "compare events.csv --feedback implicit --rank 32"),
    ),
    "reproduce": (
        ("The convergence experiment of the paper, on the demo set", "reproduce convergence"),
        ("On MovieLens 1M, with one seed", "reproduce sparsity --data ml-1m/ratings.dat --seeds 1"),
        ("The choices of the authors' code beside the paper's", "reproduce published --data ml-1m --seeds 1"),
        ("All experiments, on prepared shards", "reproduce all --data shards --partition column:client"),
    ),
    "study": (
        ("All methods, data sets and seeds of a file, over two processes", "study ranks.toml --jobs 2"),
        ("Check the file and list its runs", "study ranks.toml --dry-run"),
        ("Into a folder of your choice", "study ranks.toml --out results"),
    ),
    "benchmark list": (("Which tasks there are", "benchmark list"),),
    "benchmark show": (("The hashes of the splits, to compare two machines", "benchmark show films --seeds 1,2,3"),),
    "benchmark run": (
        ("The default model, on all three splits", "benchmark run films --method fedmc-bayes --out results"),
        ("A Python file, in a process without the answers", "benchmark run films --submission mine.py --out results"),
    ),
    "benchmark table": (("One table for each task", "benchmark table results"),),
    "report": (
        ("The report of a run of `fedmc train`", "report run"),
        ("Under another title, with a user who agreed", 'report run --title "Films of autumn" --example-user 15'),
        ("An organisation's own, with what it gains over training alone", "report made/north --alone"),
        ("Of a run of a federation, at its server", "report made/server --run 2026-10-01-120000"),
    ),
    "demo": (
        ("A federated model of real film ratings, and the alternatives", "demo"),
        ("Another split, and a folder for the run", "demo --seed 1 --out demo-run"),
    ),
}
USING: dict[str, Examples] = {
    "evaluate": (
        ("The error on ratings that the model was not trained on", "evaluate run new.csv"),
        ("Also the share of them that 90 % intervals hold", "evaluate run new.csv --interval 0.9"),
        ("Rank what users rated at least 4", "evaluate run new.csv --ranking --min-rating 4"),
    ),
    "predict": (
        ("What user 1 would rate items 2 and 3", "predict run 1 2 3"),
        ("With the range that holds the rating with 90 % probability", "predict run 1 2 3 --interval 0.9"),
        ("All pairs of a table", "predict run --pairs pairs.csv"),
    ),
    "recommend": (
        ("Five items that user 1 has not rated", "recommend run 1 -n 5"),
        ("Without two that are out of stock", "recommend run 1 --exclude 318,527"),
        ("Of all users, into a file", "recommend run --all --out recommended.parquet"),
    ),
    "similar": (
        ("The five items most like item 260", "similar run 260 -n 5"),
        ("Of one category, by the table of items", "similar run 260 --items films.csv --category genres=Drama"),
    ),
    "find": (
        ("Films whose titles have these words", "find run toy story"),
        ("With titles from a table of the items", "find run star wars --items films.csv -n 3"),
    ),
    "explain": (
        ("What moved the prediction of item 260 for user 15", "explain run 15 260"),
        ("With the effect of each rating", "explain run 15 260 --ratings ratings.csv -n 5"),
    ),
    "export": (
        ("For Spark, DuckDB or pandas", "export run --to parquet --out exported"),
        ("An index of the items, without the users", "export run --to faiss --items-only --out index"),
    ),
    "serve": (
        ("On this machine, with a token in run/serve.token", "serve run"),
        (
            "With TLS, to other machines",
            "serve run --host 0.0.0.0 --remote --allow-host films.org --tls-cert cert.pem --tls-key key.pem",
        ),
    ),
    "info": (
        ("Size, noise and settings of a model", "info run"),
        ("For a program", "info run/model.npz --json"),
    ),
}
PREPARING: dict[str, Examples] = {
    "prepare": (
        ("Ratings as memory-mapped shards, which `train` reads", "prepare ratings.csv --out shards"),
        ("Over the items that organisations agreed on", "prepare north.csv --catalogue items.json --out shards"),
    ),
    "catalogue make": (
        ("The items of one organisation", "catalogue make north.csv --out north.json"),
        ("With titles and features from a table", "catalogue make north.csv --items films.csv --out north.json"),
    ),
    "catalogue merge": (
        ("One catalogue for two organisations", "catalogue merge north.json south.json --out items.json"),
        ("With a table of items", "catalogue merge north.json south.json --items films.csv --out items.json"),
    ),
    "catalogue grow": (
        ("Add the items of a new source", "catalogue grow items.json new.csv --out longer.json"),
        ("At a server, signed, so that nodes take them in",
         "catalogue grow made/server/catalogue.json new.csv --authority made/authority"),
    ),
    "catalogue check": (("Does the catalogue hold all items of a source?", "catalogue check items.json north.csv"),),
    "data list": (("Which public data sets there are", "data list"),),
    "data info": (("Origin, size and licence of MovieLens 1M", "data info ml-1m"),),
    "data get": (
        ("Download MovieLens 100K, after you have read its licence", "data get ml-100k --accept-licence"),
        ("Then train on it by its name", "train ml-100k --out run"),
    ),
    "data synth": (
        ("Ratings from 1 to 5 with a known noise",
         "data synth --users 500 --items 200 --ratings 20000 --noise 0.5 --scale 1,5,1 --out ratings.csv"),
        ("As many as MovieLens 1M has", "data synth --like ml-1m --out shards"),
    ),
}  # fmt: skip
START: dict[str, Examples] = {
    "": (
        ("Train on real film ratings, then recommend", "train demo --out run"),
        ("Five films for user 15", "recommend run 15 -n 5"),
        ("All options of a command, with examples", "train --help"),
    ),
}
EXAMPLES = START | TRAINING | USING | PREPARING | FEDERATION


def lines_of(path: str) -> list[str]:
    """The lines below "Examples:" for a command such as `fedmc train`."""
    found = EXAMPLES.get(path.partition(" ")[2], ())
    return [line for about, words in found for line in (f"{about}:", f"  fedmc {words}")]


def write(path: str, formatter: click.HelpFormatter) -> None:
    """Write the section at the end of a help text; commands are not wrapped, so that they can be copied."""
    lines = lines_of(path)
    if lines:
        with formatter.section("Examples"):
            formatter.write("".join(f"{'':>{formatter.current_indent}}{line}\n" for line in lines))
