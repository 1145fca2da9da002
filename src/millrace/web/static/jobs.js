// Lists of jobs: selection, confirmations, and a search that continues automatically.
"use strict";
{
  const count = (value) => Number(value).toLocaleString();

  // Selection. Without this script, the server requests the confirmation of an action on all matches.

  const update = (form) => {
    const selected = form.querySelectorAll("tbody input[name=job]:checked").length;
    const all = form.querySelector("input[name=scope]:checked")?.value === "all";
    const total = form.querySelector("[data-total]")?.textContent;
    const number = form.querySelector("[data-selected]");
    if (number) number.textContent = selected ? ` (${count(selected)})` : "";
    for (const button of form.querySelectorAll("button[name=action]")) {
      button.disabled = !all && !selected;
      const { title, about } = button.dataset;
      const chosen = selected === 1 ? "the selected job" : `${count(selected)} selected jobs`;
      const target = all ? `all matching jobs${total ? ` (${total})` : ""}` : chosen;
      if (all || "warning" in button.dataset) button.dataset.confirm = `${title.replace("{target}", target)}? ${about}`;
      else delete button.dataset.confirm;
    }
  };
  const prepare = () => {
    for (const form of document.querySelectorAll("form[data-jobs], form[data-whole]")) {
      if (!form.elements.namedItem("sure")) {
        const sure = document.createElement("input");
        Object.assign(sure, { type: "hidden", name: "sure", value: "yes" });
        form.append(sure);
      }
      if ("jobs" in form.dataset) update(form);
    }
  };
  document.addEventListener("change", (event) => {
    const form = event.target.closest?.("form[data-jobs]");
    if (form) update(form);
  });
  document.addEventListener("fresh", prepare);
  addEventListener("pageshow", prepare);
  // Enter in a field presses the button next to it, not the first button of the form, which may be destructive.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches("form[data-jobs] input:not([type=hidden])")) return;
    event.preventDefault();
    const button = event.target.closest("label")?.nextElementSibling;
    if (button?.matches("button") && !button.disabled) button.click();
  });
  prepare();

  // Continue the search until the page is full.

  const search = document.querySelector("[data-search]");
  const FULL = 50;
  const go = async () => {
    const examined = document.getElementById("examined"), bar = document.getElementById("bar");
    const stop = document.getElementById("stop");
    const stopped = new AbortController();
    let { cursor } = search.dataset;
    stop.hidden = bar.hidden = false;
    stop.addEventListener("click", () => stopped.abort());
    const rows = () => search.querySelectorAll("tbody tr").length;
    try {
      while (cursor && rows() < FULL) {
        const address = new URL(location.href);
        address.searchParams.set("cursor", cursor);
        const response = await fetch(address, { signal: stopped.signal, headers: { Accept: "text/html" } });
        if (!response.ok) throw new Error(`the server replied ${response.status}`);
        const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("[data-search]");
        if (!next) throw new Error("invalid response");
        take(next);
        cursor = search.dataset.cursor = next.dataset.cursor;
        bar.max = Number(next.dataset.total) || 1;
        bar.value = Number(next.dataset.examined);
        examined.textContent = cursor
          ? `${count(rows())} found; searched ${count(next.dataset.examined)} of ${count(next.dataset.total)} jobs`
          : `${count(rows())} ${rows() === 1 ? "job" : "jobs"}`;
      }
    } catch (error) {
      examined.textContent += error.name === "AbortError" ? "; stopped" : `; search failed: ${error.message}`;
    }
    stop.hidden = bar.hidden = true;
    const total = search.querySelector("[data-total]");
    if (total) total.textContent = cursor ? `${count(rows())} or more` : count(rows());
    prepare();
  };
  const take = (next) => {
    renderTimes(next);
    const body = search.querySelector("tbody"), fresh = next.querySelector("tbody");
    if (body && fresh) body.append(...fresh.rows);
    else if (fresh) search.querySelector(".none")?.replaceWith(next.querySelector("form[data-jobs]") || next.querySelector(".wide"));
    else if (!body) {
      const none = search.querySelector(".none"), newer = next.querySelector(".none");
      if (none && newer) none.textContent = newer.textContent;
    }
    search.querySelector("#pager").replaceChildren(...next.querySelector("#pager").childNodes);
    prepare();
  };
  if (search?.dataset.cursor && search.querySelectorAll("tbody tr").length < FULL) go();
}
