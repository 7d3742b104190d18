"use strict";
// Numbers stay as they were sent: ids of more than 53 bits would be rounded.
const asSent = (key, value, context) => typeof value === "number" && context?.source && JSON.rawJSON
  ? JSON.rawJSON(context.source) : value;
for (const section of document.querySelectorAll("section")) {
  const shown = section.querySelector("pre"), body = section.querySelector("textarea");
  section.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const headers = {}, token = document.getElementById("token").value.trim();
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body) headers["Content-Type"] = "application/json";
    let text = "", good = false;
    try {
      const options = { method: section.dataset.verb, headers, body: body ? body.value : undefined };
      const answer = await fetch(section.dataset.path, options);
      good = answer.ok;
      text = await answer.text();
      text = `${answer.status}\n${JSON.stringify(JSON.parse(text, asSent), null, 2)}`;
    } catch (error) {
      text = text || String(error);
    }
    shown.textContent = text;
    shown.className = good ? "" : "bad";
    shown.hidden = false;
  });
}
