// Loads the report when it is complete. While the pipeline runs, refreshes its status, and then the page.
"use strict";
(() => {
  const prefix = document.body.dataset.prefix;
  const page = async (address) => {
    const response = await fetch(address, { headers: { Accept: "text/html" } });
    if (!response.ok) throw new Error(`${response.status}`);
    return new DOMParser().parseFromString(await response.text(), "text/html");
  };
  const load = (name) => new Promise((loaded, failed) => {
    const script = document.createElement("script");
    script.src = `${prefix}/static/${name}`;
    script.onload = loaded;
    script.onerror = failed;
    document.head.append(script);
  });
  // Plotly is large: load it only for a chart.
  const draw = async () => {
    if (!document.getElementById("report")) return;
    if (!globalThis.Plotly) await load("plotly.js");
    await load("report.js");
  };

  const renew = async () => {
    const newer = await page(location.href);
    document.getElementById("main").replaceChildren(...newer.getElementById("main").childNodes);
    renderTimes(document);
    await draw();
  };
  const look = async () => {
    const pipeline = document.getElementById("pipeline");
    if (document.hidden) return;
    if (document.getElementById("making")) {
      await renew();
    } else if (pipeline && "running" in pipeline.dataset) {
      const newer = (await page(`${prefix}/analytics/pipeline`)).getElementById("pipeline");
      if ("running" in newer.dataset) {
        renderTimes(newer);
        pipeline.replaceWith(newer);
      } else {
        await renew();
      }
    }
  };
  const again = () => setTimeout(() => look().catch(() => {}).then(again), 1000);
  draw().catch(() => { document.getElementById("not-drawn").hidden = false; }).then(again);
})();
