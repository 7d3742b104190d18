// The token comes behind the # of the address, which browsers do not send, and goes out in a header only.
const KEY = `fedmc token ${location.host}`;

function token() {
  if (location.hash.length > 1) {
    sessionStorage.setItem(KEY, decodeURIComponent(location.hash.slice(1)));
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) || "";
}

function link(text, kind) { say("link", text); byId("link").className = kind; }

function trouble(text) { say("trouble", text); byId("trouble").hidden = !text; }

async function follow() {
  const answer = await fetch("/events", { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" });
  if (answer.status === 401) return false;
  if (!answer.ok) throw new Error(await answer.text());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    const last = parts.filter((part) => part.startsWith("data: ")).pop();
    if (last) { draw(JSON.parse(last.slice(6))); link("live", "live"); trouble(""); document.body.dataset.live = "yes"; }
  }
}

async function main() {
  let pause = 1000;
  for (;;) {
    const began = Date.now();
    let words = "The server ended the connection.";
    try {
      if (!(await follow())) {
        sessionStorage.removeItem(KEY);
        link("not connected", "off");
        trouble("The token is missing or wrong. Open the address that was printed at the start, with # and the content of operator.token at its end.");
        return;
      }
    } catch (error) { words = error instanceof TypeError ? "The server cannot be reached." : error.message; }
    link("not connected", "off");
    pause = Date.now() - began > 10000 ? 1000 : Math.min(30000, pause * 2);
    trouble(`${words} Trying again in ${Math.round(pause / 1000)} s; what is shown may be old.`);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

addEventListener("hashchange", () => { if (location.hash.length > 1) { token(); location.reload(); } });
main();
