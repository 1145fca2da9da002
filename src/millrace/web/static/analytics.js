// The report comes when it is made; while the pipeline runs, its part of the page is kept fresh, and
// when it is done, so is all of it.
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
  // Plotly is large: it comes when there is something to draw.
  const draw = async () => {
    if (!document.getElementById("report")) return;
    if (!globalThis.Plotly) await load("plotly.js");
    await load("report.js");
  };

  const renew = async () => {
    const newer = await page(location.href);
    document.getElementById("main").replaceChildren(...newer.getElementById("main").childNodes);
    tellTimes(document);
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
        tellTimes(newer);
        pipeline.replaceWith(newer);
      } else {
        await renew();
      }
    }
  };
  const again = () => setTimeout(() => look().catch(() => {}).then(again), 1000);
  draw().catch(() => { document.getElementById("not-drawn").hidden = false; }).then(again);
})();
