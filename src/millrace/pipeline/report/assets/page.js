// Draws the plots of a report from the JSON in the page, with Plotly, which the page contains or has loaded.
"use strict";
(async () => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const protocols = { workq: "Workq", masenko: "Masenko", faktory: "Faktory", qless: "Qless", goqueue: "Go Job Queue", http: "HTTP", control: "control" };
  const named = (protocol) => protocols[protocol] || "the server";

  // Plotly interprets some tags in texts as markup, and the name of a queue may contain them.
  const narrow = () => innerWidth < 600;
  const plain = (text, most = narrow() ? 14 : 28) => {
    const shown = Array.from(String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\uFFFD"));
    const cut = shown.length > most ? shown.slice(0, most - 1).join("") + "…" : shown.join("");
    return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  };
  // Keep the start and the end of a worker's name: the end is often the only difference.
  const worker = (name, most) => {
    const all = Array.from(name || "(not named)");
    return plain(all.length > most ? all.slice(0, most / 2).join("") + "…" + all.slice(1 - most / 2).join("") : all.join(""), most);
  };
  // Plotly has no time zones and shows times unchanged, so it gets them in UTC.
  const times = (list) => list.map((at) => at.replace("Z", ""));
  const after = (at, seconds) => new Date(Date.parse(at) + seconds * 1000).toISOString();
  // `bounds` are the starts of all steps and the end of the last one; `extent` is the range of the axis.
  const ends = ({ at, step }) => times(at.map((each) => after(each, step)));
  const bounds = (of) => [...times(of.at), ...ends(of).slice(-1)];
  const extent = (of) => ({ range: [bounds(of)[0], ...ends(of).slice(-1)] });
  const span = (s) => {
    if (s === null || s === undefined) return "–";
    if (s < 0.9995e-3) return `${+(s * 1e6).toPrecision(3)} µs`;
    if (s < 0.9995) return `${+(s * 1e3).toPrecision(3)} ms`;
    if (s < 59.95) return `${+s.toPrecision(3)} s`;
    for (const [large, name, small, below] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      const count = Math.round(s / small), each = large / small;
      if (count >= each) return `${Math.floor(count / each)} ${name}` + (count % each ? ` ${count % each} ${below}` : "");
    }
    return `${Math.round(s)} s`;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const series = (index) => colour(`s${(index % 8) + 1}`);
  const heat = (...stops) => stops.map((at, i) => [at, colour(`h${i}`)]);

  // A logarithmic axis of seconds. Zero is drawn at its lower end.
  const least = 1e-5;
  const drawn = (list) => list.map((s) => (s === null ? null : Math.max(s, least)));
  const coarse = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000];
  const fine = [2e-5, 5e-5, 2e-4, 5e-4, 2e-3, 5e-3, 0.02, 0.05, 0.2, 0.5, 2, 5, 20, 30, 120, 300, 1200, 1800, 7200, 18000, 43200, 172800, 432000];
  const spanAxis = (lists) => {
    const known = lists.flat().filter((s) => s);
    const wide = Math.max(...known) / Math.min(...known) > 300;
    const ticks = wide ? coarse : [...coarse, ...fine].sort((a, b) => a - b);
    return { type: "log", tickvals: ticks, ticktext: ticks.map((s) => (s === least ? "≤ 10 µs" : span(s))), rangemode: "normal" };
  };

  const layout = (more) => ({
    margin: { l: narrow() ? 40 : 64, r: narrow() ? 8 : 16, t: 10, b: 40 }, height: 300, autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    hovermode: "x unified", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...more,
    xaxis: axis({ type: "date", title: { text: "UTC", standoff: 4, font: { size: 11, color: colour("soft") } }, ...more.xaxis }),
    yaxis: axis({ rangemode: "tozero", ...more.yaxis }),
  });
  const axis = (more) => ({
    gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true, ...more,
  });
  const line = (name, x, y, index, more) => ({
    type: "scatter", mode: x.length > 2 ? "lines" : "lines+markers", name, x, y, marker: { color: series(index), size: 5 },
    ...more, line: { color: series(index), width: 2, ...more.line },
  });
  // Counts by step. A short series is drawn as steps with their real widths.
  const over = (name, of, y, index, more) => (y.length > 60
    ? line(name, times(of.at), y, index, more)
    : line(name, bounds(of), [...y, ...y.slice(-1)], index, { ...more, line: { shape: "hv", ...more.line } }));

  const throughput = () => {
    const t = report.timeline;
    const rate = (list) => list.map((n) => (n * 60) / t.step);
    const lines = [["pushed", 0, "solid"], ["completed", 1, "solid"], ["failures", 2, "dot"]];
    return [
      lines.map(([name, index, dash]) => over(name, t, rate(t[name]), index, { hovertemplate: "%{y:,.3~f}", line: { dash } })),
      layout({ xaxis: extent(t) }),
    ];
  };

  const backlog = () => {
    const t = report.timeline;
    const rows = t.queues.map((row) => [plain(row.queue), row.backlog]);
    if (t.others.some((n) => n)) rows.push(["all others", t.others]);
    return [
      rows.map(([name, y], index) =>
        over(name, t, y, index, { stackgroup: "all", hovertemplate: "%{y:,}", line: { width: 1 } })),
      layout({ showlegend: true, xaxis: extent(t) }),
    ];
  };

  const percentiles = (of) => () => {
    const moments = report.latency[of];
    const texts = (list) => [...list, ...list.slice(-1)].map(span);
    return [
      [["p50", 1], ["p90", 0], ["p95", 3], ["p99", 2]].map(([name, index]) =>
        over(name, report.latency, drawn(moments[name]), index, { text: texts(moments[name]), hovertemplate: "%{text}" })),
      layout({ xaxis: extent(report.latency), yaxis: spanAxis([moments.p50, moments.p99].map(drawn)) }),
    ];
  };

  const counted = (of) => () => {
    const { edges, counts } = report.latency[of].heat;
    const every = Math.max(1, Math.ceil(edges.length / 9));
    const at = edges.map((_, i) => i).filter((i) => i % every === 0);
    return [
      [{
        type: "heatmap", x: bounds(report.latency), y: [...counts.keys(), counts.length], z: counts.map((row) => row.map((n) => (n ? Math.log10(n) + 0.3 : 0))),
        text: counts.map((row, i) => row.map((n) => `${n.toLocaleString("en")} of ${span(edges[i])} ${i + 1 < edges.length ? `to ${span(edges[i + 1])}` : "or longer"}`)),
        customdata: counts.map(() => times(report.latency.at)), hovertemplate: "from %{customdata}<br>%{text}<extra></extra>", colorscale: heat(0, 0.25, 0.5, 0.75, 1), showscale: false, ygap: 0.5,
      }],
      layout({ hovermode: "closest", yaxis: { tickvals: at, ticktext: at.map((i) => span(edges[i])), showgrid: false, rangemode: "normal" }, xaxis: { showgrid: false, ...extent(report.latency) } }),
    ];
  };

  // Rows have numbers, because Plotly would interpret some names as numbers or dates.
  const names = (list) => ({
    type: "linear", tickvals: list.map((_, i) => i), ticktext: list, range: [list.length - 0.5, -0.5], showgrid: false, zeroline: false,
    automargin: true, fixedrange: true, rangemode: "normal",
  });
  const tall = (rows, each = 26) => 90 + each * Math.max(3, rows);

  const kinds = () => {
    const rows = report.kinds.rows.filter((row) => row.run.n).slice(0, 15);
    const y = rows.map((_, i) => i);
    const dots = (of, index, symbol) => ({
      type: "scatter", mode: "markers", name: of, x: drawn(rows.map((row) => row.run[of])), y, text: rows.map((row) => span(row.run[of])),
      hovertemplate: "%{text}", marker: { color: series(index), size: 10, symbol },
    });
    const rail = {
      type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip", line: { color: colour("line"), width: 4 },
      x: drawn(rows.flatMap((row) => [row.run.p50, row.run.p99, null])), y: y.flatMap((i) => [i, i, null]),
    };
    return [
      [rail, dots("p50", 1, "circle"), dots("p95", 3, "diamond"), dots("p99", 2, "square")],
      layout({ height: tall(rows.length), hovermode: "closest", xaxis: { ...spanAxis(rows.map((row) => drawn([row.run.p50, row.run.p99]))), title: undefined },
        yaxis: names(rows.map((row) => plain(row.kind || "(none)"))) }),
    ];
  };

  const failures = () => {
    const rows = report.failures.rows.slice(0, 10);
    const label = (row) => plain([row.error_group, row.sample_message].filter((text) => text).join(": ") || "(none)", narrow() ? 16 : 40);
    const days = new Set(rows.flatMap((row) => row.days.map((seen) => seen.day)));
    if (days.size > 3) {
      return [
        rows.map((row, index) => ({
          type: "bar", name: label(row), x: row.days.map((seen) => seen.day), y: row.days.map((seen) => seen.n),
          marker: { color: series(index), pattern: { shape: index < 8 ? "" : "/" } }, hovertemplate: "%{y:,}",
        })),
        layout({ barmode: "stack", showlegend: true }),
      ];
    }
    // For few days, show the time from the first to the last failure of each day.
    return [
      rows.map((row, index) => ({
        type: "scatter", mode: "lines+markers", name: label(row), showlegend: false,
        x: row.days.flatMap((seen) => [...times([seen.first, seen.last]), null]), y: row.days.flatMap(() => [index, index, null]),
        text: row.days.flatMap((seen) => Array(3).fill(`${seen.n.toLocaleString("en")} on ${seen.day}`)),
        hovertemplate: "%{x}<br>%{text}<extra></extra>", line: { color: series(index), width: 8 }, marker: { color: series(index), size: 11, symbol: "line-ns", line: { width: 2, color: series(index) } },
      })),
      layout({ height: tall(rows.length), hovermode: "closest", xaxis: extent(report.timeline), yaxis: names(rows.map((row) => `${label(row)} (${row.n.toLocaleString("en")})`)) }),
    ];
  };

  const held = () => [
    [over("held", report.workers, report.workers.held, 4, { fill: "tozeroy", hovertemplate: "%{y:.3~g}<extra></extra>" })],
    layout({ height: 220, xaxis: extent(report.workers) }),
  ];

  const workers = () => {
    const rows = report.workers.rows;
    const several = new Set(rows.map((row) => row.server)).size > 1;
    const label = (row) => (several ? `${plain(row.server, 7)} ` : "") + `${worker(row.worker, narrow() ? 10 : 20)} · ${named(row.protocol)}`;
    return [
      [{
        type: "heatmap", x: bounds(report.workers), y: rows.map((_, i) => i), z: rows.map((row) => row.held), zmin: 0,
        customdata: rows.map(() => times(report.workers.at)), hovertemplate: "from %{customdata}<br>%{z:.3~g} at once<extra></extra>", colorscale: heat(0, 0.05, 0.2, 0.5, 1), ygap: 1, showscale: !narrow(),
        colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: colour("ink") } },
      }],
      layout({ height: tall(rows.length, 22), hovermode: "closest", xaxis: { showgrid: false, ...extent(report.workers) },
        yaxis: names(rows.map(label)) }),
    ];
  };

  const mix = () => {
    const origins = [...new Set(report.protocols.map((row) => row.origin))];
    const actors = [...new Set(report.protocols.filter((row) => row.completed).map((row) => row.actor))];
    const order = Object.keys(protocols);
    return [
      actors.map((actor) => {
        const rows = report.protocols.filter((row) => row.actor === actor && row.completed);
        return {
          type: "bar", orientation: "h", name: `by ${named(actor)}`, y: rows.map((row) => origins.indexOf(row.origin)),
          x: rows.map((row) => row.completed), hovertemplate: "%{x:,}", marker: { color: series(order.indexOf(actor) + 8) },
        };
      }),
      layout({ height: tall(origins.length, 34), barmode: "stack", hovermode: "closest", showlegend: true,
        xaxis: { type: "linear", title: undefined, tickformat: "," }, yaxis: names(origins.map((origin) => named(origin))) }),
    ];
  };

  const plots = {
    "plot-throughput": throughput, "plot-backlog": backlog, "plot-wait": percentiles("wait"), "plot-run": percentiles("run"),
    "plot-wait-heat": counted("wait"), "plot-run-heat": counted("run"), "plot-kinds": kinds, "plot-failures": failures,
    "plot-held": held, "plot-workers": workers, "plot-protocols": mix,
  };
  const draw = (width) => {
    for (const [id, plot] of Object.entries(plots)) {
      const place = document.getElementById(id);
      if (!place) continue;
      const [data, shape] = plot();
      if (width) Object.assign(shape, { width, autosize: false });
      Plotly.react(place, data, shape, { displayModeBar: false, responsive: !width, doubleClick: "reset" });
    }
  };

  const unpack = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
  };

  try {
    if (!globalThis.Plotly) await unpack();
    document.documentElement.classList.add("drawn");
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
    addEventListener("beforeprint", () => draw(680));
    addEventListener("afterprint", () => draw());
  } catch (error) {
    document.documentElement.classList.remove("drawn");
    document.getElementById("not-drawn").hidden = false;
    console.error(error);
  }
})();
