#!/usr/bin/env bash
# docs/how-to/deploy.md as a new user would follow it, on "machines" that are network namespaces with addresses of their own.
#
#   sudo scripts/three-machines.sh [FOLDER]        needs iproute2 and a `fedmc` with the extra `flower` on PATH
#
# A bridge joins a server (10.77.0.1) and three organisations (10.77.0.11, .12, .13). Each can reach the server's port
# and nothing else of it. Everything is taken away again at the end.
set -euo pipefail
place=$(realpath "${1:-$(mktemp -d)}")
tag=fmc$$
names=(north south east)
jobs=()
seed=0

in_ns() { ip netns exec "$tag-$1" "${@:2}"; }

clean_up() {
  for job in "${jobs[@]:-}"; do [ -n "$job" ] && kill "$job" 2>/dev/null || true; done
  wait 2>/dev/null || true
  for name in server "${names[@]}"; do ip netns del "$tag-$name" 2>/dev/null || true; done
  ip link del "$tag" 2>/dev/null || true
}
trap clean_up EXIT

await() { # FILE WORD
  for _ in $(seq 600); do grep -q "$2" "$1" 2>/dev/null && return; sleep 0.1; done
  echo "nothing came of it:"; cat "$1"; exit 1
}

ip link add "$tag" type bridge
ip link set "$tag" up
number=0
for name in server "${names[@]}"; do
  number=$((number + 1))
  address=10.77.0.$([ "$name" = server ] && echo 1 || echo $((9 + number)))
  ip netns add "$tag-$name"
  ip link add "${tag}v$number" type veth peer name eth0 netns "$tag-$name"
  ip link set "${tag}v$number" master "$tag" up
  in_ns "$name" ip address add "$address/24" dev eth0
  in_ns "$name" ip link set eth0 up
  in_ns "$name" ip link set lo up
done

cd "$place"
echo "== each organisation: its ratings, and the list of its items"
for name in "${names[@]}"; do
  mkdir -p "at-$name"
  fedmc data synth --users 120 --items 60 --ratings 4000 --seed "$((seed += 1))" --out "at-$name/ratings.csv"
  fedmc catalogue make "at-$name/ratings.csv" --out "at-$name/items.json"
done
echo "== whoever sets it up: one catalogue, certificates, keys, a folder for each"
fedmc catalogue merge at-*/items.json --out catalogue.json
fedmc federation init made --organisations north,south,east --host 10.77.0.1 --catalogue catalogue.json
mv made/server at-server-machine
for name in "${names[@]}"; do
  mv "made/$name" "at-$name/node"
  sed -i "s|^source = \"\"|source = \"$place/at-$name/ratings.csv\"|; s|^# test = .*|test = \"random:0.2\"|" "at-$name/node/config.toml"
done

echo "== the server's machine"
ip netns exec "$tag-server" fedmc server start at-server-machine >server.log 2>&1 &
jobs+=($!)
await server.log ready
echo "== the organisations' machines"
for name in "${names[@]}"; do
  in_ns "$name" fedmc node check "at-$name/node"
  ip netns exec "$tag-$name" fedmc node start "at-$name/node" >"$name.log" 2>&1 &
  jobs+=($!)
  await "$name.log" online
done
echo "== what an organisation can reach of the server: the gate, not Flower"
in_ns north python3 - <<'P'
import socket
reached = {port: socket.socket().connect_ex(("10.77.0.1", port)) == 0 for port in (8000, 8001)}
print(reached)
assert reached == {8000: True, 8001: False}
P
echo "== training, on the server's machine"
in_ns server fedmc federation train at-server-machine --rank 4 --rounds 5
in_ns server fedmc federation status at-server-machine
echo "== each organisation has its own model"
for name in "${names[@]}"; do
  in_ns "$name" fedmc node recommend "at-$name/node" 1 --n 2
done
if ls at-server-machine/*.key at-server-machine/nodes/* | grep -v 'server.key\|request.key\|\.pub$\|registered.json'; then
  echo "the server holds a key that is not its own"; exit 1
fi
echo "three machines: done"
