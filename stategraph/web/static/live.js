// Updates a page while it is open. Links and forms work without it.
"use strict";
const EVERY = 1000; // milliseconds
const AHEAD = Date.now() - Date.parse(document.body.dataset.now); // how far this clock is ahead of that of the server
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
let version = document.body.dataset.version;

function ago(when) { // the same text as from the server
  const seconds = (Date.now() - AHEAD - when) / 1000, size = Math.abs(seconds);
  if (seconds > -1 && seconds < 1) return "now";
  const [unit, whole] = UNITS.find(([, least]) => size >= least);
  const text = size < 10 ? `${size.toFixed(1)} s` : `${(size / whole).toFixed(0)} ${unit}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

function tick() {
  for (const time of document.querySelectorAll("time")) {
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

function showStale(isStale) {
  document.querySelector(".stale").hidden = !isStale;
}

function isInUse(part) {
  const focused = document.activeElement;
  return part.contains(focused) && focused.matches("input, textarea, select")
    || [...part.querySelectorAll("input:not([type=hidden]), textarea")].some(
      (field) => field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);
}

function replace(old, fresh) {
  if (old.innerHTML === fresh.innerHTML) return;
  for (const details of old.querySelectorAll("details[id]")) {
    const same = fresh.querySelector("#" + CSS.escape(details.id));
    if (same) same.open = details.open;
  }
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const href = focused && focused.getAttribute("href");
  old.replaceChildren(...fresh.childNodes);
  if (href) old.querySelector(`[href="${CSS.escape(href)}"]`)?.focus();
}

async function refresh() {
  const answer = await fetch(location.href, {headers: {accept: "text/html"}});
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.title = page.title;
  for (const fresh of page.querySelectorAll("[data-live]")) {
    const old = document.querySelector(`[data-live="${fresh.dataset.live}"]`);
    if (!old) { version = ""; continue; }
    const pauses = [...fresh.querySelectorAll("input[name=pause]")].map((field) => field.value);
    const typed = [...old.querySelectorAll("form.answer")].filter(isInUse);
    if (isInUse(old) && typed.every((form) => pauses.includes(form.elements.pause.value))) continue; // keep forms in use
    replace(old, fresh);
  }
}

async function watch() {
  try {
    if (document.hidden) return;
    tick();
    const answer = await fetch(document.body.dataset.watch);
    showStale(!answer.ok);
    if (!answer.ok) return;
    const now = (await answer.json()).version;
    if (now !== version) {
      version = now;
      await refresh();
    }
  } catch {
    showStale(true); // the server may come back
  } finally {
    setTimeout(watch, EVERY);
  }
}

if (document.body.dataset.watch) setTimeout(watch, EVERY);
