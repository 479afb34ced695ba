/* Keeps a page fresh without reloading it. Works on:
   [data-live="URL"]     polls URL every [data-every] seconds (2) for its parts, pauses while the tab is hidden, stops at
                         the header X-Live: done. If the server does not respond, it polls every 2 to 5 seconds and
                         shows [data-live-note]. Elements with data-part are replaced only when they changed, and
                         what a reader has opened, ticked, focused or scrolled there is kept.
   [data-flash]          the result of the last click: removed when the [data-state] of a part changes.
   time[data-ago]        "3 min ago", kept current.     time[data-since]   a clock that counts up. */
"use strict";

const TOKEN = /(?<=name="csrfmiddlewaretoken" value=")[^"]*/g; // different each time, but equally valid

const PATIENCE = 15000; // milliseconds: a server that accepts a request and never responds is down, too

const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

function lasted(seconds) {
  for (const [size, large, smaller, small] of UNITS) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / smaller);
      return Math.floor(seconds / size) + " " + large + (rest ? " " + rest + " " + small : "");
    }
  }
  return Math.floor(seconds) + " s";
}

function ago(seconds) {
  for (const [size, unit] of UNITS) {
    if (seconds >= size) return Math.floor(seconds / size) + " " + unit + " ago";
  }
  return seconds < 5 ? "just now" : Math.floor(seconds) + " s ago";
}

function tick() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-ago], time[data-since]")) {
    const seconds = Math.max(0, (now - Date.parse(time.dateTime)) / 1000);
    const words = "since" in time.dataset ? lasted(seconds) : ago(seconds);
    if (time.textContent !== words) time.textContent = words;
  }
}

function swap(old, fresh) {
  const opened = new Map([...old.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
  const scrolled = new Map([...old.querySelectorAll("pre[id], .scroll[id]")].map((one) =>
    [one.id, { top: one.scrollTop, left: one.scrollLeft, atEnd: one.scrollTop + one.clientHeight >= one.scrollHeight - 8 }]));
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  for (const one of fresh.querySelectorAll("details[id]")) {
    if (opened.has(one.id)) one.open = opened.get(one.id);
  }
  for (const one of old.querySelectorAll("input[type=checkbox][id]:checked")) {
    const same = fresh.querySelector("#" + CSS.escape(one.id));
    if (same) same.checked = true;
  }
  old.replaceWith(fresh);
  for (const [id, place] of scrolled) {
    const one = document.getElementById(id);
    if (one) { one.scrollTop = place.atEnd ? one.scrollHeight : place.top; one.scrollLeft = place.left; }
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function stateOf(parts) {
  return parts.querySelector("[data-state]")?.dataset.state;
}

function keepFresh(place) {
  const every = Number(place.dataset.every || 2) * 1000;
  const note = document.querySelector("[data-live-note]");
  const seen = new Map();
  let mark = "", failures = 0, timer = 0, isDone = false;

  async function ask() {
    timer = 0;
    try {
      const answer = await fetch(place.dataset.live, {
        headers: { "X-Requested-With": "live", ...(mark && { "If-None-Match": mark }) },
        cache: "no-store", redirect: "manual", credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE),
      });
      // Deleted, or logged out: the page itself says so.
      if (answer.status === 404 || answer.type === "opaqueredirect") { location.reload(); return; }
      if (answer.status !== 304 && !answer.ok) throw new Error(String(answer.status));
      if (answer.status === 200) {
        mark = answer.headers.get("ETag") || "";
        const fresh = document.createElement("template");
        fresh.innerHTML = await answer.text();
        if (stateOf(fresh.content) !== stateOf(place)) {
          document.querySelectorAll("[data-flash]").forEach((one) => one.remove());
        }
        for (const part of fresh.content.querySelectorAll("[data-part]")) {
          const text = part.outerHTML.replace(TOKEN, ""), old = document.getElementById(part.id);
          if (old && seen.get(part.id) !== text) swap(old, part);
          seen.set(part.id, text);
        }
        tick();
      }
      isDone = answer.headers.get("X-Live") === "done";
      failures = 0;
    } catch {
      failures += 1;
    }
    if (note) note.hidden = failures < 2;
    plan();
  }

  function plan() {
    if (isDone || timer || document.hidden) return;
    timer = setTimeout(ask, failures ? Math.min(5000, Math.max(2000, every)) : every);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    timer = 0;
    if (!document.hidden && !isDone) ask();
  });
  plan();
}

setInterval(tick, 1000);
document.querySelectorAll("[data-live]").forEach(keepFresh);
document.querySelectorAll("pre.log").forEach((log) => { log.scrollTop = log.scrollHeight; });
