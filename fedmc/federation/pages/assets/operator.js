const KINDS = {
  online: "good", "at work": "work", late: "warn", lost: "bad", running: "work", finished: "good", failed: "bad",
  diverged: "bad", "broken off": "bad", stopped: "warn",
};
const state = (text) => stateCell(text, KINDS);
let seen = null;

function drawCurves(curves) {
  const place = byId("curves");
  place.classList.toggle("two", curves.length > 1);
  if (!curves.length) { place.replaceChildren(make("p", "No measurements yet.", "soft")); return; }
  const columns = getComputedStyle(place).gridTemplateColumns.split(" ");
  place.replaceChildren(...curves.map((curve) => chart(curve, Math.max(240, parseFloat(columns[0]) || 600))));
}

function drawRun(run) {
  byId("state").className = `figure state ${run ? KINDS[run.state] || "" : ""}`;
  say("state", run ? run.state : "none yet");
  say("name", run ? run.name : "fedmc federation train starts one");
  say("round", run ? `${run.round} of ${run.rounds}` : "–");
  byId("bar").value = run && run.rounds ? Math.min(1, run.round / run.rounds) : 0;
  const wait = run && run.state === "running" ? (run.seconds_left === null ? "no estimate yet" : `about ${span(run.seconds_left)} left`) : "";
  say("left", wait || (run && run.last_round !== null ? `last round ${day(run.last_round)}` : "\u00a0"));
  say("up", run ? bytes(run.bytes_up) : "–");
  say("down", run ? `${bytes(run.bytes_down)} sent to organisations` : "\u00a0");
  say("epsilon", !run ? "–" : run.budget === null ? "off" : `epsilon ${(run.epsilon ?? 0).toPrecision(3)}`);
  say("spent", run && run.budget !== null ? `spent of ${run.budget}` : "\u00a0");
  say("claim", run ? sentence(run.claim) : "–");
  say("promise", run ? sentence(run.promise) : "");
  byId("why").hidden = !(run && run.why);
  say("why", run ? run.why : "");
  rows("errors", (run ? run.errors : []).map((one) => {
    const cell = make("td", make("div", `round ${one.round}, ${one.organisation}`, "soft"));
    cell.append(make("div", one.why));
    return [cell];
  }), "None.");
  drawCurves(run ? run.curves : []);
}

function draw(found) {
  seen = found;
  drawRun(found.run);
  rows("organisations", found.organisations.map((one) => {
    const name = make("td", one.name);
    if (one.note) name.append(make("div", one.note, "soft"));
    const cell = state(one.state);
    if (one.since !== null) cell.append(make("div", `for ${ago(one.since)}`, "soft"));
    return [name, cell, make("td", one.heard === null ? "" : `${ago(one.heard)} ago`, "tight")];
  }));
  say("certificate", found.certificate === null ? "\u00a0" : `The server's certificate is valid until ${date(found.certificate)}.`);
  rows("runs", found.runs.map((one) => {
    let report = "";
    if (one.report.startsWith("/runs/")) {
      report = make("a", "report");
      report.href = one.report; report.target = "_blank"; report.rel = "noopener noreferrer";
    }
    const rounds = make("td", `${one.round} of ${one.rounds}`, "tight");
    return [one.name, state(one.state), rounds, make("td", day(one.at), "extra"), make("td", report, "tight")];
  }), "None yet.");
}

addEventListener("resize", () => { if (seen) drawCurves(seen.run ? seen.run.curves : []); });
setInterval(() => { if (seen) draw(seen); }, 5000);
