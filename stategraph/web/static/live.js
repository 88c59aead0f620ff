// Keeps a page up to date. All else is links and forms, which work without it.
"use strict";
const EVERY = 1000; // milliseconds
let version = document.body.dataset.version;

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
    const asked = fresh.querySelector("input[name=pause]"), shown = old.querySelector("input[name=pause]");
    if (isInUse(old) && asked?.value === shown?.value) continue; // what somebody is typing stays
    replace(old, fresh);
  }
}

async function look() {
  try {
    if (document.hidden) return;
    const answer = await fetch(document.body.dataset.watch);
    if (!answer.ok) return;
    const now = (await answer.json()).version;
    if (now !== version) {
      version = now;
      await refresh();
    }
  } catch {
    // The server is away: it may come back.
  } finally {
    setTimeout(look, EVERY);
  }
}

if (document.body.dataset.watch) setTimeout(look, EVERY);
