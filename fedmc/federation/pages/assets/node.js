const KINDS = {
  active: "work", finished: "good", approved: "good", "awaiting approval": "warn", ended: "bad", rejected: "warn",
};
let seen = null;

function drawConnection(found) {
  byId("online").className = `figure state ${found.online ? "good" : "bad"}`;
  say("online", found.online ? "online" : "offline");
  const since = found.since === null ? "" : `, for ${ago(found.since)}`;
  say("server", `${found.organisation}, server ${found.server}${since}`);
}

const round = (one) => one.round === null ? one.task : `${one.task} ${one.round}`;

function drawSent(sent) {
  const last = sent.last[0];
  say("asked", last ? round(last) : "none yet");
  say("when", last ? `${ago(last.at)} ago, ${last.status === "ok" ? "answered" : `refused: ${last.status}`}` : "\u00a0");
  const sum = (name) => sent.totals.reduce((total, one) => total + one[name], 0);
  say("up", `${bytes(sum("bytes_up"))} up`);
  say("down", `${bytes(sum("bytes_down"))} down`);
  rows("requests", sent.last.map((one) => {
    const refused = one.status !== "ok";
    const answer = stateCell(refused ? "refused" : "answered", { answered: "good", refused: "bad" });
    if (refused) answer.append(make("div", `${one.status}: ${one.words}`, "soft"));
    return [make("td", `${ago(one.at)} ago`, "tight"), make("td", round(one), "tight"), make("td", one.run, "extra roomy"), answer];
  }), "Nothing yet.");
  rows("totals", sent.totals.map((one) => {
    const number = make("td", count(one.answered));
    if (one.refused) number.append(make("div", `${count(one.refused)} refused`, "soft"));
    return [one.task, number, make("td", bytes(one.bytes_up), "tight"), make("td", bytes(one.bytes_down), "tight")];
  }), "Nothing yet.");
  say("since", sent.since === null ? "\u00a0" : `Counted since ${day(sent.since)}, over all runs.`);
}

function drawData(found) {
  const data = found.data;
  byId("changed").hidden = !found.changed.length;
  say("changed", `Changed since it was read: ${found.changed.join(", ")}. fedmc node refresh takes the new data.`);
  rows("data", [
    ["Source", data.source], ["Users", count(data.users)], ["Items", `${count(data.items)} of ${count(data.catalogue)}`],
    [data.kind === "events" ? "Events" : "Ratings", count(data.known)], ["Held out", data.held_out ? count(data.held_out) : "none"],
    ["Read", day(found.read_at)],
  ].map(([name, value]) => [make("td", name, "soft"), value]));
}

function drawBudget(budget) {
  byId("bar").hidden = budget === null;
  say("epsilon", budget === null ? "none" : `${budget.spent.toPrecision(3)} of ${budget.epsilon}`);
  byId("bar").value = budget === null ? 0 : Math.min(1, budget.spent / budget.epsilon);
  say("budget", budget === null ? "no budget is set" : `delta ${budget.delta}, ${count(budget.releases)} releases`);
}

function draw(found) {
  seen = found;
  drawConnection(found);
  drawSent(found.sent);
  drawData(found);
  drawBudget(found.budget);
  rows("models", found.models.map((one) => {
    const name = make("td", one.run);
    if (one.in_use) name.append(make("div", make("span", "in use", "state good")));
    return [name, day(one.written), make("td", one.rmse === null ? "–" : one.rmse.toFixed(4), "tight")];
  }), "None yet: they are written at the end of a run.");
  rows("runs", found.runs.map((one) => {
    const name = make("td", one.run);
    if (one.description) name.append(make("div", one.description, "soft"));
    const state = stateCell(one.state, KINDS);
    if (one.why) state.append(make("div", one.why, "soft"));
    return [name, state, make("td", one.round === null ? "" : count(one.round), "tight")];
  }), "None yet.");
  rows("refusals", found.refusals.map((one) => {
    const often = one.times > 1 ? `, ${count(one.times)} times` : "";
    const cell = make("td", make("div", `${day(one.last)}${often}: ${one.what} (${one.status})`, "soft"));
    cell.append(make("div", one.reason));
    if (one.cure) cell.append(make("div", `What to do: ${one.cure}`));
    return [cell];
  }), "None.");
  const [first, ...rest] = found.accepts.map((text) => text.trim());
  say("accepts", first);
  byId("policy").replaceChildren(...rest.map((text) => make("li", text)));
}

setInterval(() => { if (seen) draw(seen); }, 5000);
