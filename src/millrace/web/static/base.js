// For all pages: times in the browser's time zone, confirmations, live numbers.
"use strict";
const prefix = document.body.dataset.prefix;

// Untrusted text on one line, as clean_text in render.py, and the paths of a queue's and of a job's page, as in
// queue_url and job_url.

const shown = (text, most = 40) => {
  const line = String(text).replaceAll("\n", "↵").replaceAll("\r", "").replaceAll("\t", " ");
  const letters = Array.from(line.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\uFFFD"));
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
};
const toQueue = (name) => ["", ".", ".."].includes(name)
  ? `/queues/?name=${encodeURIComponent(name)}` : `/queues/${encodeURIComponent(name)}`;
const toJob = (jid, seq) =>
  `/jobs/${encodeURIComponent(["", ".", ".."].includes(jid) || jid.length > 200 ? seq : jid)}?seq=${seq}`;

// Times

const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const apart = (seconds) => {
  const past = seconds >= 0, s = Math.abs(seconds);
  for (const [size, unit] of [[31557600, "years"], [86400, "d"], [3600, "h"], [60, "min"]]) {
    if (s >= 2 * size) return past ? `${Math.floor(s / size)} ${unit} ago` : `in ${Math.floor(s / size)} ${unit}`;
  }
  return past ? `${Math.floor(s)} s ago` : `in ${Math.ceil(s)} s`;
};
const renderTimes = (root) => {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const text = zoned.format(at);
    if (element.classList.contains("ago")) {
      element.textContent = apart((Date.now() - at) / 1000);
      element.title = text;
    } else {
      element.textContent = text;
      element.title = element.dateTime;
    }
  }
};
renderTimes(document);
setInterval(() => document.hidden || renderTimes(document), 1000);

// On a narrow screen the menu scrolls: show the entry of this page.

const menu = document.querySelector(".menu ul"), here = menu?.querySelector("[aria-current]");
if (here) menu.scrollLeft = here.offsetLeft - (menu.clientWidth - here.offsetWidth) / 2;

// Confirmations: <form data-confirm="Remove 12 jobs?">, or on one of its buttons. The field `sure` informs the
// server, which then requests no confirmation.

const dialog = document.getElementById("confirm");
document.addEventListener("submit", (event) => {
  const form = event.target, button = event.submitter;
  const question = button?.dataset.confirm || form.dataset.confirm;
  if (!question || form.dataset.sure) return;
  event.preventDefault();
  document.getElementById("confirm-text").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "yes") return;
    form.dataset.sure = "yes";
    if (!form.elements.namedItem("sure")) {
      form.append(Object.assign(document.createElement("input"), { type: "hidden", name: "sure", value: "yes" }));
    }
    form.requestSubmit(button);
    delete form.dataset.sure;
  }, { once: true });
});

// Select all boxes of a table: <input type="checkbox" data-all>

const boxesOf = (all) => [...all.closest("form, table").querySelectorAll("tbody input[type=checkbox]")];
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of boxesOf(event.target)) box.checked = event.target.checked;
});
// A user can click before this script runs. Keep a selection that the browser restored.
for (const all of document.querySelectorAll("[data-all]:checked")) {
  const boxes = boxesOf(all);
  if (!boxes.some((box) => box.checked)) for (const box of boxes) box.checked = true;
}

// Live numbers: one stream while the page is visible; scripts listen to the event "overview" of the document.
// Elements with an id and `data-refresh` are fetched again at that interval in seconds, unless the user is editing
// them.

const status = document.getElementById("status");
const number = (value) => Math.round(value).toLocaleString();
const few = new Intl.NumberFormat("en", { notation: "compact" });  // 1.2M: at most five characters
const COUNTED = {
  "/queues": ["ready", (overview) => overview.jobs.ready],
  "/busy": ["leased", (overview) => overview.jobs.leased],
  "/retries": ["retrying", (overview) => overview.retrying],
  "/scheduled": ["scheduled", (overview) => overview.jobs.scheduled - overview.retrying],
  "/morgue": ["dead", (overview) => overview.jobs.dead],
};
const renderCounts = (overview) => {
  for (const element of document.querySelectorAll("[data-count]")) {
    const [state, count] = COUNTED[element.dataset.count];
    const value = count(overview);
    const text = few.format(value);
    if (element.textContent !== text) element.textContent = text;
    element.title = `${number(value)} ${state} ${value === 1 ? "job" : "jobs"}`;
  }
};
let stream = null, silence = null;

// The samples of the last ten minutes. The first overview of a stream has all of them, each later one has the newest,
// which replaces the last one until that is five seconds newer than its predecessor.
let samples = [];
const timed = (sample) => ({ ...sample, time: Date.parse(sample.at) });
const addSamples = (fresh) => {
  const newest = timed(fresh.at(-1));
  if (fresh.length > 1) samples = fresh.slice(0, -1).map(timed);
  else if (samples.length > 1 && newest.time - samples.at(-2).time < 5000) samples.pop();
  samples.push(newest);
  samples = samples.filter((sample) => newest.time - sample.time <= 600e3);
};
const sampleBefore = (seconds) =>
  samples.findLast((sample) => samples.at(-1).time - sample.time >= 1000 * seconds) ?? samples[0];

// Changes per second between two samples.
const ratesBetween = (first, last) => {
  const seconds = Math.max(1, last.time - first.time) / 1000;
  const rate = (name) => Math.max(0, last[name] - first[name]) / seconds;
  return { pushed: rate("pushed"), completed: rate("completed"), failed: rate("failed") };
};

const listen = () => {
  stream = new EventSource(`${prefix}/live`);
  stream.addEventListener("overview", (event) => {
    const overview = JSON.parse(event.data);
    addSamples(overview.samples);
    overview.samples = samples;
    overview.rates = ratesBetween(sampleBefore(4), samples.at(-1));  // a shorter period is noise
    clearTimeout(silence);
    silence = null;
    status.classList.remove("away");
    status.textContent = overview.halted
      ? `The store cannot write: ${overview.halted}`
      : `${number(overview.processed)} processed · ${number(overview.failures)} failed · ${number(overview.jobs.ready)} ready · ${number(overview.jobs.leased)} leased · ${number(overview.rates.completed)} completed/s`;
    status.classList.toggle("away", Boolean(overview.halted));
    renderCounts(overview);
    document.dispatchEvent(new CustomEvent("overview", { detail: overview }));
  });
  stream.addEventListener("away", (event) => {
    status.textContent = JSON.parse(event.data);
    status.classList.add("away");
  });
  stream.onerror = () => {  // also when a stream ends and the next one starts
    silence ??= setTimeout(() => {
      status.textContent = "Connection lost";
      status.classList.add("away");
    }, 4000);
  };
};

const changed = (field) =>
  field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked
    : field.type !== "hidden" && "defaultValue" in field && field.value !== field.defaultValue;
const isBeingEdited = (element) =>
  element.contains(document.activeElement) && document.activeElement.matches("input, select, textarea") ||
  [...element.querySelectorAll("input, textarea")].some(changed) || dialog.open || String(getSelection());

// Identifies the focused element, which keeps the focus after a refresh.
const named = (element) =>
  element.id || [element.tagName, element.href ?? element.form?.getAttribute("action") ?? "", element.value ?? "", element.textContent.trim()].join(" ");

const refresh = async () => {
  const wanted = [...document.querySelectorAll("[data-refresh]")].filter((element) => !isBeingEdited(element));
  if (!wanted.length) return;
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const element of wanted) {
    const newer = fresh.getElementById(element.id);
    if (!newer || isBeingEdited(element)) continue;
    const focused = element.contains(document.activeElement) ? named(document.activeElement) : "";
    const open = [...element.querySelectorAll("details")].map((each) => each.open);
    renderTimes(newer);
    element.replaceChildren(...newer.childNodes);
    [...element.querySelectorAll("details")].forEach((each, i) => { each.open = open[i] ?? each.open; });
    if (focused) [...element.querySelectorAll("a, button, summary, [tabindex]")].find((each) => named(each) === focused)?.focus();
  }
  document.dispatchEvent(new CustomEvent("fresh"));
};

if ("live" in document.body.dataset) {
  let timer = null;
  const every = Math.min(...[...document.querySelectorAll("[data-refresh]")].map((e) => Number(e.dataset.refresh) || 5));
  const wake = () => {
    if (document.hidden) {
      stream?.close();
      clearInterval(timer);
      stream = timer = null;
    } else if (!stream) {
      listen();
      if (Number.isFinite(every)) timer = setInterval(() => refresh().catch(() => {}), every * 1000);
      renderTimes(document);
    }
  };
  document.addEventListener("visibilitychange", wake);
  wake();
}
