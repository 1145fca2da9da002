// Plots with Plotly, alike everywhere: charts.draw(element, traces, layout). Where traces have colours
// of ours, they are given as a function, which is asked again when light turns to dark.
"use strict";
const charts = (() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // Plotly takes some tags in its texts for markup; a queue's name has none.
  const plain = (text, most = 40) =>
    shown(text, most).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const axis = () => ({
    gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true,
    ticks: "outside", ticklen: 4, tickcolor: "rgba(0,0,0,0)",
  });
  const layout = (more = {}) => ({
    margin: { l: 52, r: 12, t: 8, b: 36 }, height: 260, autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, hovermode: "x unified",
    colorway: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => colour(`s${i}`)),
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...more,
    xaxis: { ...axis(), ...more.xaxis },
    yaxis: { ...axis(), rangemode: "tozero", separatethousands: true, ...more.yaxis },
  });
  const drawn = new Map();
  const draw = (element, traces, more) => {
    drawn.set(element, [traces, more]);
    const made = typeof traces === "function" ? traces() : traces;
    return Plotly.react(element, made, layout(more), { displayModeBar: false, responsive: true });
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [element, [traces, more]] of drawn) draw(element, traces, more);
  });
  return { colour, draw, plain };
})();
