"""Examples of the commands of a federation: `fedmc federation`, `server` and `node`."""

from __future__ import annotations

SETUP = {
    "federation init": (
        ("Folders for a server and three organisations, on this machine",
         "federation init made --organisations north,south,east --host 127.0.0.1"),
        ("With the catalogue that they agreed on",
         "federation init made --organisations north,south --host fedmc.example.org --catalogue items.json"),
    ),
    "federation add": (
        ("One more organisation; its folder is made/west", "federation add west made"),
        ("With keys that it made itself", "federation add west made --keys keys.json"),
    ),
    "federation remove": (
        ("Mark an organisation as gone", "federation remove west made"),
        ("With its statement on what becomes of its part", "federation remove west made --statement leave.json"),
    ),
    "federation take-out": (
        ("Take the part of west out of the last finished run", "federation take-out west made/server"),
        ("Out of another run", "federation take-out west made/server --run 2026-10-01-120000"),
    ),
    "federation members": (
        ("Who is a member, and who has left", "federation members made/server"),
        ("Take in a newer list from the coordinator", "federation members made/server --take members.json"),
    ),
    "federation announce": (("Tell all nodes of new members and items", "federation announce made/server"),),
    "federation renew": (
        ("A new certificate for the server, for a year", "federation renew made/authority made/server --days 365"),
        ("A member's new keys", "federation renew made/authority made/server --keys keys.json"),
    ),
    "federation sign-key": (
        ("Show the public key that nodes pin", "federation sign-key made/server"),
        ("Make a new one", "federation sign-key made/server --renew"),
    ),
}  # fmt: skip
RUNNING = {
    "federation train": (
        ("A run of 20 rounds, under secure aggregation", "federation train made/server --rounds 20"),
        ("Go on from the last finished run with new ratings", "federation train made/server --from latest"),
        ("With differential privacy", "federation train made/server --privacy dp --epsilon 3 --ratings 1,5"),
    ),
    "federation resume": (
        ("Go on with the run that stopped last", "federation resume made/server"),
        ("In the background", "federation resume made/server --detach"),
    ),
    "federation schedule": (
        ("A systemd timer that trains every night", "federation schedule daily made/server"),
        ("Options of `federation train` follow two dashes", "federation schedule monthly made/server -- --rounds 5"),
    ),
    "federation stop": (("End the run that is going on; it can be resumed", "federation stop made/server"),),
    "federation status": (
        ("Whose nodes are online, and the last run", "federation status made/server"),
        ("For a program", "federation status made/server --json"),
    ),
    "federation demo": (
        ("A server and three organisations as real processes", "federation demo"),
        ("Keep their folders", "federation demo --rounds 5 --keep made"),
    ),
    "server start": (
        ("Run the server, with the operator's page", "server start made/server"),
        ("The page on another port", "server start made/server --page 9000"),
    ),
}
NODE = {
    "node check": (
        ("Before the first run: ratings, keys, connection, policy", "node check made/north"),
        ("After the source has changed", "node check made/north --reread"),
    ),
    "node start": (
        ("Take part in runs until stopped", "node start made/north"),
        ("Say where the ratings are, on first use", "node start made/north --source ratings.csv"),
    ),
    "node refresh": (("Read new ratings; the node must not be running", "node refresh made/north"),),
    "node forget": (
        ("Remove two users for good", "node forget made/north 15 22"),
        ("How many were removed", "node forget made/north --list"),
    ),
    "node models": (("The models of past runs, and which is in use", "node models made/north"),),
    "node rollback": (
        ("Use the model of the run before", "node rollback made/north"),
        ("Or that of a run you name", "node rollback made/north --to 2026-10-01-120000"),
    ),
    "node ledger": (
        ("How much of the privacy budget is spent", "node ledger made/north"),
        ("Its record is lost: go on with what you say was spent", "node ledger made/north --accept-loss 3"),
    ),
    "node status": (("Policy, runs and the last refusals", "node status made/north"),),
    "node approve": (
        ("Runs that wait, with their settings", "node approve --list made/north"),
        ("Let one begin", "node approve 2026-10-01-120000 made/north"),
    ),
    "node reject": (
        ("Take no part in a run", "node reject 2026-10-01-120000 made/north"),
        ("Reject all that wait", "node reject --all made/north"),
    ),
    "node leave": (
        ("State that this organisation leaves", "node leave made/north"),
        ("And that its part goes too", "node leave made/north --take-out"),
    ),
    "node keys": (
        ("New keys; keys.json goes to the coordinator", "node keys made/north"),
        ("Of an organisation that has no folder yet", "node keys west --organisation west"),
    ),
    "node identity": (
        ("The members' keys for secure aggregation", "node identity made/north"),
        ("Make a new one for this node", "node identity made/north --renew"),
    ),
    "node trust": (
        ("Pin the server's key, after you have compared its fingerprint", "node trust made/north server.pub"),
        ("Another one from now on", "node trust made/north server.pub --replace"),
    ),
    "node predict": (
        ("What user 15 would rate items 1 and 260", "node predict made/north 15 1 260"),
        ("With 90 % intervals", "node predict made/north 15 1 260 --interval 0.9"),
    ),
    "node recommend": (
        ("Five items for user 15", "node recommend made/north 15 -n 5"),
        ("Of all users of the organisation", "node recommend made/north --all --out recommended.csv"),
    ),
    "node similar": (("The five items most like item 260", "node similar made/north 260 -n 5"),),
    "node serve": (
        ("The organisation's model, to its own programs on this machine", "node serve made/north"),
        ("On another port, with the token elsewhere", "node serve made/north --port 9000 --token-file token"),
    ),
    "node find": (("Films whose titles have these words", "node find made/north toy story"),),
    "node export": (
        ("The model with the organisation's own users", "node export made/north --to onnx --out exported"),
        ("Only its items", "node export made/north --to npz --items-only --out items"),
    ),
    "node explain": (("What moved the prediction of item 260 for user 15", "node explain made/north 15 260"),),
}
FEDERATION: dict[str, tuple[tuple[str, str], ...]] = SETUP | RUNNING | NODE
